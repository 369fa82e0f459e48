// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/worker_set.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>

#include "driver/softnic/softnic.h"
#include "tests/unit/eventually.h"
#include "tests/unit/tlib/server_storage/temp_folder.h"
#include "tlib/client/session.h"
#include "tlib/server/server.h"

namespace termfs::tlib::server {
namespace {

cpu_set_t CpusOfThisThread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  return set;
}

std::vector<int> Cpus() {
  const cpu_set_t set = CpusOfThisThread();
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (CPU_ISSET(cpu, &set)) {
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

// What `worker` may run on.
cpu_set_t CpusOf(Worker& worker) {
  std::atomic<bool> asked{false};
  cpu_set_t set;
  worker.Post([&] {
    set = CpusOfThisThread();
    asked = true;
  });
  EXPECT_TRUE(Eventually([&] { return asked.load(); }));
  return set;
}

class WorkerSetTest : public testing::Test {
 protected:
  const std::unique_ptr<driver::Nic> nic_ = driver::CreateSoftNic().value();
  const std::unique_ptr<driver::ProtectionDomain> domain_ = nic_->CreateProtectionDomain().value();
};

TEST_F(WorkerSetTest, Near_AsManyWorkersAsCpus_EachIsBoundToOne) {
  const std::vector<int> cpus = Cpus();
  const auto set = WorkerSet::Start(*nic_, *domain_, static_cast<uint32_t>(cpus.size()));
  ASSERT_TRUE(set.ok()) << set.status().ToString();
  for (const int cpu : cpus) {
    Worker& worker = *(*set)->Near(cpu).worker;
    const cpu_set_t where = CpusOf(worker);
    EXPECT_EQ(CPU_COUNT(&where), 1);
    EXPECT_TRUE(CPU_ISSET(cpu, &where));
    EXPECT_EQ((*set)->Near(cpu).worker.get(), &worker) << "not by turns";
  }
}

TEST_F(WorkerSetTest, Near_OfNoWorker_TakesTurns) {
  const auto set = WorkerSet::Start(*nic_, *domain_, static_cast<uint32_t>(Cpus().size()) + 1);
  ASSERT_TRUE(set.ok()) << set.status().ToString();
  for (const int cpu : {-1, 0, -7, 1 << 20}) {
    Worker& first = *(*set)->Near(cpu).worker;
    EXPECT_NE((*set)->Near(cpu).worker.get(), &first);
    const cpu_set_t where = CpusOf(first);
    EXPECT_EQ(static_cast<size_t>(CPU_COUNT(&where)), Cpus().size()) << "not bound";
  }
}

// Answers with the CPU that it runs on, and how many it may run on.
class WhereService final : public Service {
 public:
  Result<std::vector<std::byte>> Handle(Call&) override {
    const cpu_set_t set = CpusOfThisThread();
    return std::vector<std::byte>{static_cast<std::byte>(sched_getcpu()), static_cast<std::byte>(CPU_COUNT(&set))};
  }
  Result<std::vector<std::byte>> HandleAdmin(uint16_t, std::span<const std::byte>) override {
    return Status::Error(ENOSYS, "none");
  }
  void SessionOpened(const SessionInfo&) override {}
  void SessionClosed(SessionId) override {}
  bool AllowsRawWrites() const override { return false; }
};

TEST_F(WorkerSetTest, OpenChannel_OfABoundThread_IsServedOnItsCpu) {
  const TempFolder folder;
  ServerOptions options;
  options.region.device = folder.path() + "/region";
  options.region.written_log = folder.path() + "/written";
  options.region.pages = 256;
  options.socket_directory = folder.path();
  options.workers = static_cast<uint32_t>(Cpus().size());
  ASSERT_TRUE(Server::FormatRegion(options.region, nullptr).ok());
  WhereService service;
  const auto server = Server::Start(*nic_, options, service);
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  const auto client_nic = driver::CreateSoftNic().value();
  const auto session = client::Session::Connect(*client_nic, folder.path(), {}, nullptr);
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  for (const int cpu : Cpus()) {
    std::thread([&, cpu] {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
      for (int i = 0; i < 3; i++) {
        const auto channel = (*session)->OpenChannel({.buffer_bytes = kPageSize});
        ASSERT_TRUE(channel.ok()) << channel.status().ToString();
        const auto reply = (*channel)->Call({.opcode = kFirstServiceOpcode, .body = {}, .in = {}, .out = {}});
        ASSERT_TRUE(reply.ok()) << reply.status().ToString();
        ASSERT_EQ(reply->body.size(), 2U);
        EXPECT_EQ(reply->body[0], static_cast<std::byte>(cpu));
        EXPECT_EQ(reply->body[1], std::byte{1});
      }
    }).join();
  }
}

}  // namespace
}  // namespace termfs::tlib::server
