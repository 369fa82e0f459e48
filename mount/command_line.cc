// SPDX-License-Identifier: Apache-2.0
//
// The only file that sees CLI11. Values stay text here: the commands parse sizes and numbers themselves.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "mount/command.h"
#include "mount/mount_config.h"

namespace termfs::mount {
namespace {

using Action = std::function<int()>;

constexpr char kWhereServed[] = "the volume's directory, a mount point, or HOST:PORT of a server on another host";
constexpr char kSecret[] = "with HOST:PORT: a file with the volume's secret, that nobody else may read";

// An empty word is a variable that a script left unset, not a wish for the default. Mount options may be empty.
void RefuseEmptyWords(CLI::App& app) {
  const CLI::Validator not_empty([](const std::string& word) { return word.empty() ? "is empty" : std::string(); }, "");
  for (CLI::App* command : app.get_subcommands({})) {
    RefuseEmptyWords(*command);
    for (CLI::Option* option : command->get_options()) {
      if (option->get_items_expected_max() > 0 && option->get_name() != "-o") {
        option->check(not_empty);
      }
    }
  }
}

void AddFormat(CLI::App& app, FormatArguments& arguments, Action& action) {
  CLI::App* command = app.add_subcommand("format", "Make a volume; all its state is in DIR");
  command->add_option("DIR", arguments.directory, "a directory that is empty or does not exist")->required();
  command->add_option("--capacity", arguments.capacity, "size of the SSD-extended region, such as 8G")->required();
  command->add_option("--dram-ratio", arguments.dram_ratio, "part of it kept in memory, 0.01 to 1 (default 0.5)");
  command->add_option("--metadata-memory", arguments.metadata_memory,
                      "memory for names and attributes, beside that part, 32M to 1T (default 256M)");
  command->add_option("--device", arguments.device,
                      "block device for the data, or a file, which is made and must not be there yet (default: a file\n"
                      "in DIR)");
  command->add_flag("--force", arguments.force,
                    "with --device: overwrite what the block device holds, such as a file system or the region of\n"
                    "another volume; DIR has to be empty all the same");
  command->callback([&] { action = [&] { return RunFormat(arguments); }; });
}

void AddServe(CLI::App& app, const Program& program, ServeArguments& arguments, Action& action) {
  CLI::App* command = app.add_subcommand("serve", "Serve a volume; returns when clients can connect");
  command->add_option("DIR", arguments.directory, "the volume")->required();
  command->add_option("--dram-ratio", arguments.dram_ratio, "this time, instead of the volume's setting");
  command->add_option("--kind", arguments.kind,
                      "memory region: term, or for comparison pin, odp, rpc, rpc_buffer, rpc_direct, rpc_tiering;\n"
                      "this time, instead of the volume's setting (term in a new volume)");
  command->add_option("--promoter", arguments.promoter,
                      "what stays in memory: heat, recent, static; this time, instead of the volume's setting\n"
                      "(heat in a new volume)");
  command->add_option("--workers", arguments.workers,
                      "threads that serve requests, 1 to 64; this time, instead of the volume's setting (1 in a\n"
                      "new volume)");
  command->add_option("--metadata-memory", arguments.metadata_memory,
                      "memory for names and attributes; this time, instead of the volume's setting");
  command->add_option("--memory-directory", arguments.memory_directory,
                      "a tmpfs where memory outlives a killed server, instead of the volume's setting; none: nowhere");
  command->add_option("--listen", arguments.listen,
                      "address to serve other hosts at: HOST or HOST:PORT (default port 4794), such as\n"
                      "0.0.0.0, for who knows DIR/secret, which is made if it is not there");
  command->add_option("--rdma", arguments.rdma,
                      "with --listen: RDMA device that serves other hosts, by name or address (default: the\n"
                      "software RNIC); processes of this host go on through shared memory");
  command->add_option("--rdma-wire", arguments.rdma_wire,
                      "with --listen: iwarp or roce, and nothing else over a network (default: iWARP over TCP where\n"
                      "the mount speaks it, too, else RoCEv2)");
  command->add_option(
      "--rnic-threads", arguments.rnic_threads,
      "with --listen: threads of the software RNIC, 1 to 64, over which the connections of other hosts are\n"
      "spread (default: one for each two processors, at most 4)");
  command->add_option("--tls", arguments.tls,
                      "with --listen: off: file data of mounts with -o tls=off travels readable and open to forgery;\n"
                      "on (the default): inside TLS, but by RDMA devices and roce, which have none");
  command->add_flag("--foreground", arguments.foreground, "stay, and log to standard error instead of DIR/log");
  command->add_flag("--verbose", arguments.verbose, "log more");
  command->footer(
      "SIGTERM to its process, or Ctrl-C in the foreground, ends the server; what is only in memory is written first.\n"
      "SIGHUP makes it open DIR/log anew, for logrotate; in the foreground it ends the server, unless it was ignored\n"
      "at the start (nohup), as SIGINT may be.\n"
      "termfs status names the process.\n");
  command->callback([&] { action = [&] { return RunServe(program, arguments); }; });
}

void AddMount(CLI::App& app, const Program& program, MountArguments& arguments, Action& action) {
  CLI::App* command = app.add_subcommand("mount", "Mount a served volume; returns when it is usable");
  command->add_option("ADDR", arguments.address, "the volume's directory, or HOST:PORT of its server")->required();
  command->add_option("MOUNTPOINT", arguments.mountpoint, "an empty directory")->required();
  command->add_option("--secret", arguments.secret, kSecret);
  command->add_option("-o", arguments.options, "mount options, see below")->allow_extra_args(false);
  command->add_option("--log", arguments.log,
                      "file for messages (default in the background: /var/log/termfs-mount.log), which is opened\n"
                      "anew at SIGHUP, for logrotate");
  command->add_flag("--foreground", arguments.foreground, "stay, and log to standard error unless --log is given");
  command->add_flag("--verbose", arguments.verbose, "log more");
  command->footer(MountOptionsHelp());
  command->callback([&] { action = [&] { return RunMount(program, arguments); }; });
}

void AddUmount(CLI::App& app, UmountArguments& arguments, Action& action) {
  CLI::App* command = app.add_subcommand("umount", "Unmount; returns when the mount's process has ended");
  command->add_option("MOUNTPOINT", arguments.mountpoint, "where it is mounted")->required();
  command->add_flag("--lazy", arguments.lazily, "detach it although it is in use");
  command->footer(
      "Where the same file system is mounted elsewhere, too, or its process is in another PID namespace, it says so\n"
      "and does not wait. With --lazy it never waits.\n");
  command->callback([&] { action = [&] { return RunUmount(arguments); }; });
}

void AddStatus(CLI::App& app, StatusArguments& arguments, Action& action) {
  CLI::App* command = app.add_subcommand("status", "Capacity, DRAM tier, sessions, transport and health of a server");
  command->add_option("ADDR|MNT", arguments.address, kWhereServed)->required();
  command->add_option("--secret", arguments.secret, kSecret);
  command->add_flag("--json", arguments.json, "for programs");
  command->footer(
      "Of a mount, also whether it is connected with its server, or since when it is not. When the server does not\n"
      "answer, that is all that is printed, and the exit code is 1.\n");
  command->callback([&] { action = [&] { return RunStatus(arguments); }; });
}

void AddStats(CLI::App& app, StatsArguments& arguments, Action& action) {
  CLI::App* command =
      app.add_subcommand("stats", "What happens now: operations, bytes, latency, of a mount or a server");
  command->add_option("ADDR|MNT", arguments.source, kWhereServed)->required();
  command->add_option("--secret", arguments.secret, kSecret);
  command->add_flag("--sessions", arguments.sessions, "of the server, what each of its sessions asks for");
  command->add_flag("--json", arguments.json,
                    "one object with all counters per sample; docs/metrics.md says what they are");
  command->add_option("--interval", arguments.interval, "seconds between samples (default 1)");
  command->add_option("--count", arguments.count, "end after so many samples");
  command->footer(
      "A mount point shows what programs there ask for, an address what the server is asked for. Rates are per "
      "second,\n"
      "p50 and p99 percentiles of what has ended since the line before; - means that there was nothing.\n"
      "  hit%, miss     pages read one-sidedly, in percent of all, and pages that the server had to be asked for\n"
      "  hits           pages read one-sidedly, of which a server hears about once a second\n"
      "  m/s            requests other than reads and writes\n"
      "  in/s, out/s    pages that have got a place in the DRAM tier, and that have lost it\n"
      "  link           whether the mount has its server, or for how long it has been without (down, later given-up)\n"
      "Sessions are shown busiest first, without those that ask for nothing.\n");
  command->callback([&] { action = [&] { return RunStats(arguments); }; });
}

void AddSet(CLI::App& app, SetArguments& arguments, Action& action) {
  CLI::App* command = app.add_subcommand("set", "Change settings of a running server");
  command->add_option("ADDR|MNT", arguments.address, kWhereServed)->required();
  command->add_option("--secret", arguments.secret, kSecret);
  command
      ->add_option(
          "KEY=VALUE", arguments.settings,
          "capacity=16G, dram-ratio=0.3, metadata-memory=512M, promoter=heat|recent|static, pattern=random (a new\n"
          "magic pattern)")
      ->required();
  command->footer(
      "Everything is changed while the volume is used, and refused where it cannot be. A smaller capacity takes its\n"
      "time: what files have in the way is moved first. This command waits for it, and the server goes on when it is\n"
      "interrupted; status shows how much is to be moved yet. capacity=SIZE with the size of now calls it off.\n");
  command->callback([&] { action = [&] { return RunSet(arguments); }; });
}

void AddQuota(CLI::App& app, QuotaArguments& arguments, Action& action) {
  CLI::App* quota = app.add_subcommand("quota", "Limit what a directory and all below it may take");
  quota->require_subcommand(1);
  CLI::App* set = quota->add_subcommand("set", "Set limits of a directory");
  set->add_option("PATH", arguments.path, "a directory in a mount")->required();
  set->add_option("LIMIT", arguments.limits, "bytes=SIZE, inodes=N; none: no such limit")->required();
  set->footer(
      "What is in the directory already counts, too. What goes beyond a limit fails: 'Disk quota exceeded'. A limit\n"
      "that is not named stays as it is. Names do not move into the directory or out of it, nor do links lead there\n"
      "or out of it (EXDEV; mv copies); this ends when its limits are set to none while it is empty. Quotas do not\n"
      "nest. Only root sets them.\n");
  set->callback([&] { action = [&] { return RunQuotaSet(arguments); }; });
  CLI::App* get = quota->add_subcommand("get", "Show limits and what is in use");
  get->add_option("PATH", arguments.path, "a directory with a quota, or anything in one")->required();
  get->add_flag("--json", arguments.json, "for programs");
  get->callback([&] { action = [&] { return RunQuotaGet(arguments); }; });
  CLI::App* list = quota->add_subcommand("list", "Show all quotas of a volume, by paths from its root on");
  list->add_option("ADDR|MNT", arguments.path, kWhereServed)->required();
  list->add_option("--secret", arguments.secret, kSecret);
  list->add_flag("--json", arguments.json, "for programs");
  list->callback([&] { action = [&] { return RunQuotaList(arguments); }; });
}

void AddFsck(CLI::App& app, FsckArguments& arguments, Action& action) {
  CLI::App* command = app.add_subcommand("fsck", "Check a volume that is not served");
  command->add_option("DIR", arguments.directory, "the volume")->required();
  command->add_flag("--json", arguments.json, "for programs");
  command->add_flag("--repair", arguments.repair,
                    "end what a crash has cut short, on a volume that is sound otherwise; without it nothing changes");
  command->callback([&] { action = [&] { return RunFsck(arguments); }; });
}

constexpr char kExitCodes[] = "Exit codes: 0 ok, 1 failed, 2 bad usage.\n";
constexpr char kWhereHelpIs[] = "Each subcommand has options of its own: termfs SUBCOMMAND --help shows them.\n";

std::vector<std::string> Subcommands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

bool LooksLikeOption(const std::string& word) { return word.size() > 1 && word[0] == '-' && word != "--"; }

// The subcommand of the subcommand, and so on, as far as there are words for one.
const CLI::App& Asked(const CLI::App& app) {
  const std::vector<CLI::App*> commands = app.get_subcommands();
  return commands.empty() ? app : Asked(*commands[0]);
}

// Those that have more to say at their end say this, too.
void AddExitCodes(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands({})) {
    AddExitCodes(*command);
    if (command->get_footer() != kExitCodes) {
      command->footer(command->get_footer() + kExitCodes);
    }
  }
}

// Where it says that something is missing or too much, CLI11 does not name a word that it does not know.
std::string WhatIsWrong(const CLI::App& app, const CLI::Error& error) {
  const auto* const missing = dynamic_cast<const CLI::RequiredError*>(&error);
  if (missing == nullptr && dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr) {
    return error.what();
  }
  const std::vector<std::string> left = app.remaining(/*recurse=*/true);
  if (const auto option = std::find_if(left.begin(), left.end(), &LooksLikeOption); option != left.end()) {
    return fmt::format("there is no option '{}'", *option);
  }
  if (missing == nullptr && !left.empty()) {
    return fmt::format("'{}' is one argument too many", left[0]);
  }
  const std::vector<std::string> commands = Subcommands(Asked(app));
  if (commands.empty()) {
    return error.what();
  }
  const std::string known = fmt::format("{}", fmt::join(commands, ", "));
  return left.empty() ? "a subcommand is missing: " + known
                      : fmt::format("there is no subcommand '{}'; there are {}", left[0], known);
}

// As other errors look; the help is that of the subcommand, unless what is wrong comes before one.
std::string ErrorMessage(const CLI::App* app, const CLI::Error& error) {
  const std::vector<CLI::App*> commands = app->get_subcommands();
  const bool before = commands.empty() || !app->remaining().empty();
  return fmt::format("termfs: {}\nSee termfs {}--help.\n", WhatIsWrong(*app, error),
                     before ? "" : commands[0]->get_name() + " ");
}

}  // namespace

int RunCommandLine(const Program& program, int argc, char** argv) {
  FormatArguments format;
  ServeArguments serve;
  MountArguments mount;
  UmountArguments umount;
  StatusArguments status;
  StatsArguments stats;
  SetArguments set;
  QuotaArguments quota;
  FsckArguments fsck;
  Action action;
  CLI::App app("termfs: a distributed file system whose servers expose more memory than they have", "termfs");
  app.set_version_flag("--version", "termfs " TERMFS_VERSION);
  app.require_subcommand(1);
  app.failure_message(&ErrorMessage);
  app.footer(kExitCodes);  // handed on to the subcommands
  AddFormat(app, format, action);
  AddServe(app, program, serve, action);
  AddMount(app, program, mount, action);
  AddUmount(app, umount, action);
  AddStatus(app, status, action);
  AddStats(app, stats, action);
  AddSet(app, set, action);
  AddQuota(app, quota, action);
  AddFsck(app, fsck, action);
  AddExitCodes(app);
  app.footer(std::string(kExitCodes) + kWhereHelpIs);
  RefuseEmptyWords(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return action();
}

}  // namespace termfs::mount
