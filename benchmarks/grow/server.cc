// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/grow/server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

#include "benchmarks/must.h"
#include "benchmarks/term/open_service.h"
#include "benchmarks/term/process_usage.h"
#include "driver/softnic/softnic.h"

namespace termfs::benchmarks::grow {
namespace {

template <typename T>
void Send(int socket, const T& answer) {
  term::Child::Send(socket, std::as_bytes(std::span(&answer, 1)));
}

void Serve(const tlib::server::RegionOptions& region, const std::string& directory, int socket) {
  tlib::server::ServerOptions options;
  options.socket_directory = directory;
  options.region = region;
  const auto nic = Must(driver::CreateSoftNic());
  term::OpenService service;
  const auto began = std::chrono::steady_clock::now();
  const double processor_began = term::ProcessorSecondsOf(getpid());
  const auto server = Must(tlib::server::Server::Start(*nic, options, service));
  Send(socket, StartCost{.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(),
                         .processor_seconds = term::ProcessorSecondsOf(getpid()) - processor_began});
  char asked = 0;
  while (recv(socket, &asked, sizeof(asked), 0) == sizeof(asked)) {
    Send(socket, term::CountsOf(*server));
  }
}

}  // namespace

GrowServer::GrowServer(const tlib::server::RegionOptions& options, const std::string& directory)
    : child_("the server", [&](int socket) { Serve(options, directory, socket); }),
      start_cost_(child_.Hear<StartCost>()) {}

void GrowServer::Kill() const {
  if (kill(child_.pid(), SIGKILL) != 0) {
    Die(ErrnoStatus("kill the server"));
  }
}

term::ServerCounts GrowServer::Counts() const {
  child_.Tell(char{0});
  return child_.Hear<term::ServerCounts>();
}

}  // namespace termfs::benchmarks::grow
