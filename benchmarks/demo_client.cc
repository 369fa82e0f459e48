// SPDX-License-Identifier: Apache-2.0
//
// The demonstration without FUSE: writes files of known contents to a served volume through fs/client, reads them at
// random by Zipf with several threads, verifies every byte, and prints what the client counted.
//
//   demo_client VOLUME [--mib N] [--seconds N] [--threads N] [--bitmap live|pulled|off] [--skip-write] [--json]
#include <fcntl.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <thread>

#include "benchmarks/known_bytes.h"
#include "benchmarks/zipf.h"
#include "driver/softnic/softnic.h"
#include "fs/client/file_system.h"

namespace termfs::benchmarks {
namespace {

using fs::client::FileSystem;
using fs::client::Lane;
using fs::client::OpenFile;

constexpr uint64_t kFileBytes = 64U << 20;
constexpr uint64_t kChunk = 1U << 20;

struct Settings {
  std::string volume;
  uint64_t mib = 1536;
  uint64_t seconds = 10;
  unsigned threads = 4;
  bool skip_write = false;
  bool json = false;

  uint64_t files() const { return (mib << 20) / kFileBytes; }
};

Status CheckExpected(uint64_t file, uint64_t offset, std::span<const std::byte> got, size_t wanted) {
  std::vector<std::byte> expected(wanted);
  FillKnown(file, offset, expected);
  if (got.size() != wanted || std::memcmp(got.data(), expected.data(), wanted) != 0) {
    return Status::Error(EIO, "file " + std::to_string(file) + " holds wrong bytes at " + std::to_string(offset));
  }
  return Status::Ok();
}

Status WriteFiles(const Settings& settings, FileSystem& volume, Lane& lane) {
  for (uint64_t file = 0; file < settings.files(); file++) {
    ASSIGN_OR_RETURN(auto made, volume.Create(lane, {}, fs::kRootInode, "demo" + std::to_string(file), S_IFREG | 0644,
                                              O_RDWR | O_CREAT | O_TRUNC));
    Status status;
    for (uint64_t offset = 0; offset < kFileBytes && status.ok(); offset += kChunk) {
      FillKnown(file, offset, lane.buffer().first(kChunk));
      status = volume.Write(lane, made.second, offset, lane.buffer().first(kChunk), {});
    }
    volume.Release(lane, made.second);
    RETURN_IF_ERROR(std::move(status));
    std::fprintf(stderr, "\rwritten %lu of %lu MiB ", ((file + 1) * kFileBytes) >> 20, settings.mib);
  }
  std::fputc('\n', stderr);
  return Status::Ok();
}

Result<std::vector<OpenFile*>> OpenFiles(const Settings& settings, FileSystem& volume, Lane& lane) {
  std::vector<OpenFile*> open;
  for (uint64_t file = 0; file < settings.files(); file++) {
    ASSIGN_OR_RETURN(const fs::Attributes found, volume.Lookup(lane, fs::kRootInode, "demo" + std::to_string(file)));
    ASSIGN_OR_RETURN(OpenFile * opened, volume.Open(lane, found.ino, O_RDONLY));
    open.push_back(opened);
  }
  return open;
}

Status ReadAtRandom(const Zipf& zipf, const std::vector<OpenFile*>& open, FileSystem& volume, uint64_t seed,
                    std::chrono::steady_clock::time_point end, std::atomic<uint64_t>& reads) {
  ASSIGN_OR_RETURN(auto lane, volume.OpenLane());
  Random random(seed);
  while (std::chrono::steady_clock::now() < end) {
    const uint64_t at = zipf.Draw(random) * kPageSize;
    const uint64_t file = at / kFileBytes;
    ASSIGN_OR_RETURN(const auto got, volume.Read(*lane, open[file], at % kFileBytes, kPageSize));
    RETURN_IF_ERROR(CheckExpected(file, at % kFileBytes, got, kPageSize));
    reads.fetch_add(1, std::memory_order_relaxed);
  }
  return Status::Ok();
}

Status ReadPhase(const Settings& settings, FileSystem& volume, const std::vector<OpenFile*>& open) {
  const Zipf zipf(settings.files() * kFileBytes / kPageSize, 0.99, 1);
  std::atomic<uint64_t> reads{0};
  std::vector<Status> outcome(settings.threads);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(settings.seconds);
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < settings.threads; i++) {
      threads.emplace_back([&, i] { outcome[i] = ReadAtRandom(zipf, open, volume, i + 1, end, reads); });
    }
    for (uint64_t last = 0; std::chrono::steady_clock::now() < end;) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      const uint64_t now = reads.load(std::memory_order_relaxed);
      std::fprintf(stderr, "%8lu reads/s of 4 KiB, each one verified\n", now - last);
      last = now;
    }
  }
  for (Status& status : outcome) {
    RETURN_IF_ERROR(std::move(status));
  }
  return Status::Ok();
}

Status VerifyAll(const Settings& settings, FileSystem& volume, Lane& lane, const std::vector<OpenFile*>& open) {
  for (uint64_t file = 0; file < settings.files(); file++) {
    for (uint64_t offset = 0; offset < kFileBytes; offset += kChunk) {
      ASSIGN_OR_RETURN(const auto got, volume.Read(lane, open[file], offset, kChunk));
      RETURN_IF_ERROR(CheckExpected(file, offset, got, kChunk));
    }
  }
  std::fprintf(stderr, "verified %lu MiB: every byte as written\n", settings.mib);
  return Status::Ok();
}

void Print(const Settings& settings, const std::vector<MetricValue>& metrics) {
  for (size_t i = 0; i < metrics.size(); i++) {
    if (settings.json) {
      std::printf("%s\"%s\": %lu", i == 0 ? "{" : ", ", metrics[i].name.c_str(), metrics[i].value);
    } else {
      std::printf("%-36s %12lu\n", metrics[i].name.c_str(), metrics[i].value);
    }
  }
  if (settings.json) {
    std::puts("}");
  }
}

Status Run(const Settings& settings, tlib::client::BitmapMode bitmap) {
  ASSIGN_OR_RETURN(auto nic, driver::CreateSoftNic());
  fs::client::MountOptions options;
  options.session.program = "demo";
  options.session.bitmap = bitmap;
  ASSIGN_OR_RETURN(auto volume, FileSystem::Connect(*nic, settings.volume, options, nullptr));
  ASSIGN_OR_RETURN(auto lane, volume->OpenLane());
  if (!settings.skip_write) {
    RETURN_IF_ERROR(WriteFiles(settings, *volume, *lane));
  }
  ASSIGN_OR_RETURN(const auto open, OpenFiles(settings, *volume, *lane));
  Status status = ReadPhase(settings, *volume, open);
  if (status.ok()) {
    status = VerifyAll(settings, *volume, *lane, open);
  }
  for (OpenFile* file : open) {
    volume->Release(*lane, file);
  }
  Print(settings, volume->Metrics());
  return status;
}

}  // namespace
}  // namespace termfs::benchmarks

int main(int argc, char** argv) {
  using termfs::tlib::client::BitmapMode;
  termfs::benchmarks::Settings settings;
  BitmapMode bitmap = BitmapMode::kLive;
  const std::map<std::string, BitmapMode> modes = {
      {"live", BitmapMode::kLive}, {"pulled", BitmapMode::kPulled}, {"off", BitmapMode::kOff}};
  CLI::App app("Writes, reads and verifies files of a served volume through the client library, without FUSE.");
  app.add_option("volume", settings.volume, "the volume's directory")->required();
  app.add_option("--mib", settings.mib, "how much to write, a multiple of 64")->check(CLI::Range(64, 1 << 20));
  app.add_option("--seconds", settings.seconds, "of random reads")->check(CLI::Range(1, 3600));
  app.add_option("--threads", settings.threads, "that read")->check(CLI::Range(1, 64));
  app.add_option("--bitmap", bitmap, "where absent pages are known from")->transform(CLI::CheckedTransformer(modes));
  app.add_flag("--skip-write", settings.skip_write, "the files are there already");
  app.add_flag("--json", settings.json, "print the counters as one JSON object");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const termfs::Status status = termfs::benchmarks::Run(settings, bitmap);
  if (!status.ok()) {
    std::fprintf(stderr, "demo_client: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
