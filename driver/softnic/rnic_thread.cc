// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/rnic_thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/start_thread.h"

namespace termfs::driver::softnic {

Result<std::shared_ptr<RnicThread>> RnicThread::Create(std::shared_ptr<Registry> registry) {
  std::shared_ptr<RnicThread> rnic(new RnicThread);
  ASSIGN_OR_RETURN(rnic->loop_, EventLoop::Create());
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the process's own threads
  Result<std::thread> started = StartThread([loop = rnic->loop_.get(), registry = std::move(registry)] {
    pthread_setname_np(pthread_self(), "softnic");
    if (registry != nullptr) {
      registry->BeginServing();
    }
    loop->Run();
    if (registry != nullptr) {
      registry->EndServing();
    }
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ASSIGN_OR_RETURN(rnic->thread_, std::move(started));
  rnic->Barrier();  // it serves
  return rnic;
}

RnicThread::~RnicThread() {
  if (thread_.joinable()) {
    loop_->Stop();
    thread_.join();
  }
}

void RnicThread::Watch(std::shared_ptr<Port> port) {
  loop_->Post([loop = loop_.get(), port = std::move(port)] {
    const int fd = port->answer_fd();
    const Status added = loop->Add(fd, EPOLLIN | EPOLLRDHUP, [loop, port, fd](uint32_t events) {
      if (!port->Serve(events)) {
        loop->Remove(fd);
      }
    });
    if (!added.ok()) {
      LOG_ERROR("watch a queue pair: {}", added.ToString());
      port->Break();
    }
  });
}

void RnicThread::Unwatch(std::shared_ptr<Port> port) {
  // The task holds the port, so that its descriptor cannot have become somebody else's by the time it is removed.
  loop_->Post([loop = loop_.get(), port = std::move(port)] { loop->Remove(port->answer_fd()); });
}

void RnicThread::Watch(int fd, std::function<void()> readable) {
  loop_->Post([loop = loop_.get(), fd, readable = std::move(readable)] {
    const Status added = loop->Add(fd, EPOLLIN, [readable](uint32_t) { readable(); });
    TERMFS_CHECK(added.ok());
  });
}

void RnicThread::Unwatch(int fd) {
  loop_->Post([loop = loop_.get(), fd] { loop->Remove(fd); });
}

void RnicThread::Run(std::function<void()> task) {
  if (std::this_thread::get_id() == thread_.get_id()) {
    task();
  } else {
    Post(std::move(task));
  }
}

void RnicThread::Barrier() {
  if (std::this_thread::get_id() == thread_.get_id()) {
    return;
  }
  struct Gate {
    Mutex mutex;
    CondVar open_changed;
    bool open GUARDED_BY(mutex) = false;
  };
  auto gate = std::make_shared<Gate>();
  loop_->Post([gate] {
    MutexLock lock(gate->mutex);
    gate->open = true;
    gate->open_changed.NotifyAll();
  });
  MutexLock lock(gate->mutex);
  while (!gate->open) {
    if (!gate->open_changed.WaitFor(gate->mutex, std::chrono::seconds(10)) && !gate->open) {
      LOG_ERROR("the RNIC thread has been busy for 10 s: a fault handler blocks");
    }
  }
}

}  // namespace termfs::driver::softnic
