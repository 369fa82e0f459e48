// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <getopt.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "base/log.h"
#include "mount/command.h"
#include "mount/log_reopener.h"
#include "mount/mount_service.h"
#include "mount/remount.h"

namespace termfs::mount {
namespace {

constexpr char kHelperUsage[] = "usage: mount.termfs ADDR MOUNTPOINT [-o OPTIONS]";
// What mount(8) itself ends with, and so its helpers.
constexpr int kMountUsage = 1;
constexpr int kMountFailed = 32;
constexpr char kDefaultLog[] = "/var/log/termfs-mount.log";

// In the foreground standard error; in the background the file that was named, or root's usual place.
Result<std::string> LogPath(const MountArguments& arguments) {
  if (!arguments.log.empty()) {
    return AbsolutePath(arguments.log);  // the mount has another working directory
  }
  if (arguments.foreground) {
    return std::string();
  }
  return std::string(geteuid() == 0 ? kDefaultLog : "/dev/null");
}

// Null when there is none; the mount works without.
std::unique_ptr<MountGuard> StartGuard() {
  Result<std::unique_ptr<MountGuard>> guard = MountGuard::Start();
  if (!guard.ok()) {
    LOG_WARNING("should this process be killed, programs may hang: {}", guard.status().ToString());
    return nullptr;
  }
  return std::move(*guard);
}

Status Serve(const Program& program, const MountRequest& request, Hangup hangup, Readiness& readiness) {
  ASSIGN_OR_RETURN(const UniqueFd signals, BlockEndSignals(hangup));  // before any thread
  const std::unique_ptr<MountGuard> guard = StartGuard();
  std::unique_ptr<LogReopener> reopener;
  if (hangup == Hangup::kReopensLog) {
    ASSIGN_OR_RETURN(reopener, LogReopener::Start());
  }
  ASSIGN_OR_RETURN(const auto nic, program.open_nic(request.config.rdma));
  KernelCacheNotifier cache;
  ASSIGN_OR_RETURN(const auto file_system,
                   fs::client::FileSystem::Connect(*nic, request.address, ToClientOptions(request), &cache));
  return ServeFileSystem(*file_system, cache, guard.get(), request, signals, readiness);
}

// The directory's absolute path, without asking a file system that may be mounted on it.
Result<std::string> MountPointPath(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> resolved(realpath(path.c_str(), nullptr), &free);
  if (resolved == nullptr) {
    return ErrnoStatus("mount point " + path);
  }
  return std::string(resolved.get());
}

}  // namespace

int RunMount(const Program& program, const MountArguments& arguments) {
  MountRequest request;
  for (const std::string& options : arguments.options) {
    if (const Status applied = ApplyMountOptions(options, request.config); !applied.ok()) {
      return BadUsage("mount", applied);
    }
  }
  const std::string& secret = arguments.secret.empty() ? request.config.secret : arguments.secret;
  const Result<fs::client::ServerAddress> address = VolumeAddress(arguments.address, secret);
  if (!address.ok()) {
    return address.status().code() == EINVAL && fs::client::MeansHost(arguments.address)
               ? BadUsage("mount", address.status())
               : Failed(address.status());
  }
  request.address = *address;
  const char* const for_hosts = !request.config.rdma.empty() ? "rdma=" : !secret.empty() ? "a secret" : nullptr;
  if (for_hosts != nullptr && !address->remote()) {
    return BadUsage("mount", Status::Error(EINVAL, std::string(for_hosts) +
                                                       " is for a volume that is served on a network, as HOST:PORT"));
  }
  const Result<std::string> mountpoint = MountPointPath(arguments.mountpoint);
  if (!mountpoint.ok()) {
    return Failed(mountpoint.status());
  }
  request.mountpoint = *mountpoint;
  if (const Status usable = CheckMountPoint(request.mountpoint); !usable.ok()) {
    return Failed(usable);
  }
  const Result<std::string> log = LogPath(arguments);
  if (!log.ok()) {
    return Failed(log.status().WithContext("--log"));
  }
  return RunService(arguments.foreground, [&](Readiness& readiness) {
    const LogLevel level = arguments.verbose ? LogLevel::kDebug : LogLevel::kInfo;
    RETURN_IF_ERROR(StartLog(level, *log, request.mountpoint));
    return Serve(program, request, log->empty() ? Hangup::kEnds : Hangup::kReopensLog, readiness);
  });
}

namespace {

struct HelperWords {
  MountArguments arguments;
  std::string options;  // of all -o
  bool sloppy = false;
  bool fake = false;
};

// An exit code where nothing more is to be done.
std::optional<int> ParseHelperWords(int argc, char** argv, HelperWords& words) {
  int option = 0;
  constexpr struct option kLong[] = {{"help", no_argument, nullptr, 'h'}, {}};
  while ((option = getopt_long(argc, argv, "hsfnvN:t:o:", kLong, nullptr)) != -1) {
    switch (option) {
      case 'h':
        return Print(std::string(kHelperUsage) + "\ntermfs mount --help says what the options are.\n");
      case 's':
        words.sloppy = true;
        break;
      case 'f':
        words.fake = true;
        break;
      case 'v':
        words.arguments.verbose = true;
        break;
      case 'n':  // no mtab: there is none
      case 'N':  // mount(8) has entered the name space
      case 't':
        break;
      case 'o':
        words.options += (words.options.empty() ? "" : ",") + std::string(optarg);
        break;
      default:
        std::fprintf(stderr, "%s\n", kHelperUsage);  // getopt has said what is wrong
        return kMountUsage;
    }
  }
  if (argc - optind != 2) {
    BadUsage("mount", Status::Error(EINVAL, kHelperUsage));
    return kMountUsage;
  }
  words.arguments.address = argv[optind];
  words.arguments.mountpoint = argv[optind + 1];
  return std::nullopt;
}

// mount(8) does not pass on what are its defaults; those of termfs are the opposite. Users other than root have no
// choice.
std::string SuidAndDev(const MountConfig& config) {
  const auto lacks = [&](std::string_view option) {
    return std::find(config.kernel.begin(), config.kernel.end(), option) == config.kernel.end();
  };
  return geteuid() != 0 ? "" : std::string(lacks("nosuid") ? "suid," : "") + (lacks("nodev") ? "dev" : "");
}

int RunRemount(const std::string& mountpoint, const std::string& options) {
  const Result<std::string> path = MountPointPath(mountpoint);
  const Status done = path.ok() ? Remount(*path, options) : path.status();
  return done.ok() ? kExitOk : Failed(done);
}

}  // namespace

int RunMountHelper(const Program& program, int argc, char** argv) {
  HelperWords words;
  if (const std::optional<int> done = ParseHelperWords(argc, argv, words)) {
    return *done;
  }
  const UnknownOptions unknown = words.sloppy ? UnknownOptions::kPassedOver : UnknownOptions::kRefused;
  const std::optional<std::string> remount = RemountOptions(words.options);
  MountConfig config;
  if (const Status known = ApplyMountOptions(remount.value_or(words.options), config, unknown); !known.ok()) {
    BadUsage("mount", known);
    return kMountUsage;
  }
  if (words.fake) {
    return kExitOk;
  }
  const std::string understood = fmt::format("{}", fmt::join(config.given, ","));
  if (remount) {
    return RunRemount(words.arguments.mountpoint, understood) == kExitOk ? kExitOk : kMountFailed;
  }
  words.arguments.options = {understood, SuidAndDev(config)};
  const int code = RunMount(program, words.arguments);
  return code == kExitUsage ? kMountUsage : code == kExitFailed ? kMountFailed : code;
}

}  // namespace termfs::mount
