// SPDX-License-Identifier: Apache-2.0
//
// Workers for tests that run in tasks: two of them, each with a libaio context.
//
// Thread-safety: the test's thread.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "tlib/server/aio_context.h"
#include "tlib/server/region.h"
#include "tlib/server/worker.h"

namespace termfs::tlib::server {

class TaskRunner {
 public:
  explicit TaskRunner(size_t count = 2) {
    for (size_t i = 0; i < count; i++) {
      auto aio = AioContext::Create(64);
      EXPECT_TRUE(aio.ok()) << aio.status().ToString();
      auto worker = Worker::Create({.index = static_cast<uint32_t>(i)});
      EXPECT_TRUE(worker.ok()) << worker.status().ToString();
      EXPECT_TRUE((*worker)->AddSource(**aio).ok());
      (*worker)->Start();
      aios_.push_back(std::move(*aio));
      workers_.push_back(std::move(*worker));
    }
  }
  ~TaskRunner() {
    for (auto& worker : workers_) {
      worker->Stop();
    }
  }
  TaskRunner(const TaskRunner&) = delete;
  TaskRunner& operator=(const TaskRunner&) = delete;

  void Spawn(std::function<void()> task) {
    running_++;
    workers_[next_++ % workers_.size()]->Spawn([this, task = std::move(task)] {
      task();
      running_--;
    });
  }
  // Tasks that were spawned and have not ended.
  size_t running() const { return running_; }
  Spawner spawner() {
    return [this](std::function<void()> task) { Spawn(std::move(task)); };
  }

  // Runs `tasks` at the same time, in tasks, and waits for all of them.
  void RunAll(std::vector<std::function<void()>> tasks) {
    std::vector<std::future<void>> ends;
    for (auto& task : tasks) {
      auto promise = std::make_shared<std::promise<void>>();
      ends.push_back(promise->get_future());
      Spawn([task = std::move(task), promise] {
        task();
        promise->set_value();
      });
    }
    for (auto& end : ends) {
      ASSERT_EQ(end.wait_for(std::chrono::seconds(120)), std::future_status::ready) << "a task hangs";
    }
  }
  void Run(std::function<void()> task) { RunAll({std::move(task)}); }

 private:
  std::vector<std::unique_ptr<AioContext>> aios_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> running_{0};
};

}  // namespace termfs::tlib::server
