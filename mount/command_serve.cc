// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/signalfd.h>

#include <filesystem>
#include <memory>

#include "base/log.h"
#include "fs/server/settings.h"
#include "fs/server/volume.h"
#include "mount/command.h"
#include "mount/daemon.h"
#include "mount/log_reopener.h"
#include "mount/size.h"

namespace termfs::mount {
namespace {

constexpr int kServeTurnMs = 60 * 1000;  // one turn of an endless wait
constexpr uint64_t kMaxWorkers = 64;

// What the command line says goes before the volume's file.
Status Override(const ServeArguments& arguments, fs::server::VolumeSettings& settings) {
  if (!arguments.dram_ratio.empty()) {
    Result<double> ratio = ParseRatio(arguments.dram_ratio);
    if (!ratio.ok()) {
      return std::move(ratio).status().WithContext("--dram-ratio");
    }
    settings.dram_ratio = *ratio;
  }
  if (!arguments.workers.empty()) {
    Result<uint64_t> workers = ParseCount(arguments.workers, 1, kMaxWorkers);
    if (!workers.ok()) {
      return std::move(workers).status().WithContext("--workers");
    }
    settings.workers = static_cast<uint32_t>(*workers);
  }
  if (!arguments.rnic_threads.empty()) {
    Result<uint64_t> threads = ParseCount(arguments.rnic_threads, 1, kMaxWorkers);
    if (!threads.ok()) {
      return std::move(threads).status().WithContext("--rnic-threads");
    }
    settings.rnic_threads = static_cast<uint32_t>(*threads);
  }
  if (!arguments.metadata_memory.empty()) {
    Result<uint64_t> memory = ParseMetadataMemory(arguments.metadata_memory);
    if (!memory.ok()) {
      return std::move(memory).status().WithContext("--metadata-memory");
    }
    settings.metadata_memory_bytes = *memory;
  }
  if (!arguments.kind.empty()) {
    settings.kind = arguments.kind;
  }
  if (!arguments.memory_directory.empty()) {
    settings.memory_directory = arguments.memory_directory;
  }
  if (!arguments.listen.empty()) {
    settings.listen = arguments.listen;
  }
  if (!arguments.rdma.empty()) {
    settings.rdma = arguments.rdma;
  }
  if (!arguments.rdma_wire.empty()) {
    settings.rdma_wire = arguments.rdma_wire;
  }
  if (!arguments.tls.empty()) {
    settings.tls = arguments.tls;
  }
  if (!arguments.promoter.empty()) {
    settings.promoter = arguments.promoter;
  }
  return fs::server::CheckSettings(settings);
}

void WaitForSignal(const UniqueFd& signals) {
  pollfd ready{.fd = signals.get(), .events = POLLIN, .revents = 0};
  while (poll(&ready, 1, kServeTurnMs) <= 0) {
  }
}

Status Serve(const Program& program, const std::string& directory, const fs::server::VolumeSettings& settings,
             Hangup hangup, Readiness& readiness) {
  ASSIGN_OR_RETURN(const UniqueFd signals, BlockEndSignals(hangup));  // before any thread
  std::unique_ptr<LogReopener> reopener;
  if (hangup == Hangup::kReopensLog) {
    ASSIGN_OR_RETURN(reopener, LogReopener::Start());
  }
  ASSIGN_OR_RETURN(const auto nic, program.open_server_nic(settings.rdma, settings.rnic_threads));
  ASSIGN_OR_RETURN(const auto server, fs::server::VolumeServer::Start(*nic, directory, settings));
  LOG_INFO("serving {}", directory);
  readiness.Ok();
  WaitForSignal(signals);
  LOG_INFO("told to end");
  if (Status stopped = server->Stop(); !stopped.ok()) {
    return std::move(stopped).WithContext("ended, but not everything is on the SSD");
  }
  LOG_INFO("ended, everything is on the SSD");
  return Status::Ok();
}

bool IsEmpty(const std::string& directory) {
  std::error_code error;
  return std::filesystem::is_directory(directory, error) && std::filesystem::is_empty(directory, error);
}

}  // namespace

int RunServe(const Program& program, const ServeArguments& arguments) {
  const Result<std::string> directory = VolumePath(arguments.directory);
  if (!directory.ok()) {
    return Failed(
        IsEmpty(arguments.directory)
            ? Status::Error(EUCLEAN, arguments.directory + " is empty, not a termfs volume; termfs format makes one")
            : directory.status());
  }
  if (const Status trusted = fs::server::CheckTrusted(*directory); !trusted.ok()) {
    return Failed(trusted);  // before its settings are read, and before there is a log in it
  }
  Result<fs::server::VolumeSettings> settings = fs::server::LoadSettings(*directory);
  if (!settings.ok()) {
    return Failed(settings.status());
  }
  if (const Status overridden = Override(arguments, *settings); !overridden.ok()) {
    return BadUsage("serve", overridden);
  }
  return RunService(arguments.foreground, [&](Readiness& readiness) {
    const LogLevel level = arguments.verbose ? LogLevel::kDebug : LogLevel::kInfo;
    RETURN_IF_ERROR(StartLog(level, arguments.foreground ? "" : *directory + "/log"));
    const Hangup hangup = arguments.foreground ? Hangup::kEnds : Hangup::kReopensLog;
    return Serve(program, *directory, *settings, hangup, readiness);
  });
}

}  // namespace termfs::mount
