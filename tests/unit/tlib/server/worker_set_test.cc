// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/worker_set.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>

#include "driver/softnic/softnic.h"
#include "tests/unit/eventually.h"
#include "tests/unit/tlib/volume_fixture.h"
#include "tlib/server/cpus.h"

namespace termfs::tlib {
namespace {

cpu_set_t CpusOfThisThread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  return set;
}

std::vector<int> Cpus() { return server::CpusOfThisThread(server::WorkerSet::kMostBound); }

// What `worker` may run on.
cpu_set_t CpusOf(server::Worker& worker) {
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
  const std::unique_ptr<server::WorkerSet> set_ = server::WorkerSet::Start(*nic_, *domain_, 2).value();
};

TEST_F(WorkerSetTest, Near_OfACpu_IsTheWorkerBoundToIt) {
  for (const int cpu : Cpus()) {
    server::Worker& worker = *set_->Near(cpu).worker;
    const cpu_set_t where = CpusOf(worker);
    EXPECT_EQ(CPU_COUNT(&where), 1);
    EXPECT_TRUE(CPU_ISSET(cpu, &where));
    EXPECT_EQ(set_->Near(cpu).worker.get(), &worker) << "not by turns";
  }
}

TEST_F(WorkerSetTest, Near_OfNoCpu_TakesTurnsAmongTheOthers) {
  for (const int cpu : {-1, -7, 1 << 20}) {
    server::Worker& first = *set_->Near(cpu).worker;
    server::Worker& second = *set_->Near(cpu).worker;
    EXPECT_NE(&second, &first);
    EXPECT_EQ(set_->Near(cpu).worker.get(), &first) << "there are two";
    const cpu_set_t where = CpusOf(first);
    EXPECT_EQ(static_cast<size_t>(CPU_COUNT(&where)), Cpus().size()) << "not bound";
  }
}

class NearTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(volume_.Format().ok());
    const Status started = volume_.Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
  }
  // Of the session of `client`, after it has read a page in memory and absent ones.
  uint32_t QueuePairsAfterReads(TestClient& client) {
    constexpr uint64_t kReads = 100;
    EXPECT_TRUE(client.Connect(volume_.path()).ok());
    std::vector<std::byte> page(kPageSize, std::byte{1});
    EXPECT_TRUE(client.Write(0, page).ok());
    std::vector<std::byte> back(kPageSize);
    EXPECT_TRUE(client.Read(0, back).ok());
    EXPECT_EQ(back, page);
    for (uint64_t i = 0; i < kReads; i++) {
      EXPECT_TRUE(client.Read(next_page_++ * kPageSize, back).ok());
      EXPECT_EQ(back, std::vector<std::byte>(kPageSize));
    }
    EXPECT_EQ(MetricOf(client.session->Metrics(), "rpc_reads_total"), kReads);
    const auto sessions = volume_.server().Sessions();
    EXPECT_EQ(sessions.size(), 1u);
    return sessions.front().queue_pairs;
  }
  uint64_t next_page_ = 1;  // that nobody has asked for yet
  TestVolume volume_{{.pages = 8192, .dram_ratio = 0.5}};
};

TEST_F(NearTest, AbsentPages_OfABoundThread_ComeOverAQueuePairOfTheirOwn) {
  if (Cpus().size() < 2) {
    GTEST_SKIP() << "with one CPU every thread is bound";
  }
  uint32_t one = 0;
  {
    TestClient free;
    one = QueuePairsAfterReads(free);
  }
  for (const int cpu : Cpus()) {
    std::thread([&, cpu] {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(cpu, &set);
      ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
      EXPECT_TRUE(Eventually([&] { return volume_.server().Sessions().empty(); }));
      TestClient bound;
      EXPECT_EQ(QueuePairsAfterReads(bound), one + 1);
    }).join();
  }
}

}  // namespace
}  // namespace termfs::tlib
