// SPDX-License-Identifier: Apache-2.0
#include "driver/verbs/queue_pair.h"

#include <endian.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/random.h"
#include "driver/roce/endpoint.h"
#include "driver/roce/packet.h"
#include "driver/verbs/elements.h"
#include "driver/verbs/shared_receives.h"
#include "driver/verbs/verbs.h"

namespace termfs::driver::verbs {
namespace {

constexpr uint32_t kMaxInFlight = 1U << 14;
constexpr uint64_t kReceive = UINT64_MAX;  // the wr_id of receives; sends count from 0
constexpr uint32_t kAtomicBytes = sizeof(uint64_t);
// The specification's codes.
constexpr uint8_t kTimeout = 14;        // 4.096 us * 2^14: 67 ms without an answer, then once more
constexpr uint8_t kRetries = 7;         // then the connection is lost
constexpr uint8_t kNotReadyTimer = 20;  // 10.24 ms: what the peer waits for a receive of ours
constexpr uint8_t kNotReadyRetries = 6;
constexpr uint8_t kNotReadyForEver = 7;
constexpr uint8_t kHops = 64;
constexpr ptrdiff_t kSubnetBytes = 8;  // of a GID, the first

WcStatus StatusOf(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return WcStatus::kSuccess;
    case IBV_WC_LOC_LEN_ERR:
      return WcStatus::kLocLenErr;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
      return WcStatus::kLocProtErr;
    case IBV_WC_WR_FLUSH_ERR:
      return WcStatus::kWrFlushErr;
    case IBV_WC_REM_INV_REQ_ERR:
      return WcStatus::kRemInvReqErr;
    case IBV_WC_REM_ACCESS_ERR:
      return WcStatus::kRemAccessErr;
    case IBV_WC_REM_OP_ERR:
      return WcStatus::kRemOpErr;
    case IBV_WC_RETRY_EXC_ERR:
      return WcStatus::kRetryExcErr;
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return WcStatus::kRnrRetryExcErr;
    default:
      return WcStatus::kFatalErr;
  }
}

ibv_wr_opcode OpcodeOf(Opcode opcode) {
  switch (opcode) {
    case Opcode::kRdmaRead:
      return IBV_WR_RDMA_READ;
    case Opcode::kRdmaWrite:
      return IBV_WR_RDMA_WRITE;
    case Opcode::kRdmaWriteWithImm:
      return IBV_WR_RDMA_WRITE_WITH_IMM;
    case Opcode::kCompareSwap:
      return IBV_WR_ATOMIC_CMP_AND_SWP;
    case Opcode::kFetchAdd:
      return IBV_WR_ATOMIC_FETCH_AND_ADD;
    default:
      return IBV_WR_SEND;
  }
}

bool IsAtomic(Opcode opcode) { return opcode == Opcode::kCompareSwap || opcode == Opcode::kFetchAdd; }

ibv_mtu MtuCodeOf(uint32_t bytes) {
  return bytes >= 4096   ? IBV_MTU_4096
         : bytes >= 2048 ? IBV_MTU_2048
         : bytes >= 1024 ? IBV_MTU_1024
         : bytes >= 512  ? IBV_MTU_512
                         : IBV_MTU_256;
}

}  // namespace

Result<std::unique_ptr<QueuePair>> VerbsQueuePair::Create(std::shared_ptr<Domain> domain,
                                                          const QueuePairOptions& options) {
  if (!options.network) {
    return Status::Error(EINVAL, "create a queue pair of an RDMA device without a network path");
  }
  if (options.send_cq == nullptr || options.recv_cq == nullptr || options.max_recv > kMaxInFlight ||
      options.max_send == 0 || options.max_send > kMaxInFlight) {
    return Status::Error(EINVAL,
                         "create a queue pair: needs both completion queues, max_send of 1 to 16384, and max_recv up "
                         "to 16384");
  }
  std::unique_ptr<VerbsQueuePair> pair(new VerbsQueuePair(std::move(domain), options));
  RETURN_IF_ERROR(pair->Init());
  return std::unique_ptr<QueuePair>(std::move(pair));
}

Status VerbsQueuePair::Init() {
  ASSIGN_OR_RETURN(port_, domain_->device().Find(options_.network->local));
  RETURN_IF_ERROR(SecureRandom(&first_sequence_, sizeof(first_sequence_)));
  first_sequence_ &= roce::kSequenceMask;
  RETURN_IF_ERROR(send_queue_->Reserve(options_.max_send));
  send_reserved_ = true;
  RETURN_IF_ERROR(receive_queue_->Reserve(own_receives()));
  receive_reserved_ = true;

  ibv_qp_init_attr wanted{};
  wanted.send_cq = send_queue_->get();
  wanted.recv_cq = receive_queue_->get();
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = options_.max_send;
  if (options_.shared_receives != nullptr) {
    wanted.srq = static_cast<VerbsSharedReceives*>(options_.shared_receives)->get();
  } else {
    wanted.cap.max_recv_wr = std::max(options_.max_recv, 1U);
  }
  wanted.cap.max_send_sge = wanted.cap.max_recv_sge = domain_->keys() != nullptr ? kMostParts : 1;
  pair_.reset(ibv_create_qp(domain_->get(), &wanted));
  if (pair_ == nullptr) {
    return ErrnoStatus("create a queue pair");
  }
  send_queue_->Add(number(), *this);
  if (receive_queue_ != send_queue_) {
    receive_queue_->Add(number(), *this);
  }
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = port_.port;
  attributes.qp_access_flags =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  return Modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "initialise");
}

VerbsQueuePair::~VerbsQueuePair() {
  if (pair_ != nullptr) {
    if (options_.shared_receives != nullptr) {
      Close();  // the device takes no more of them for it; those that it has taken complete
      receive_queue_->Collect();
    }
    send_queue_->Remove(number(), options_.shared_receives != nullptr);
    receive_queue_->Remove(number(), options_.shared_receives != nullptr);
    pair_.reset();
    // What is left of it must not be taken for the next one's that gets its number.
    send_queue_->Collect();
    receive_queue_->Collect();
  }
  if (send_reserved_) {
    send_queue_->GiveBack(options_.max_send);
  }
  if (receive_reserved_) {
    receive_queue_->GiveBack(own_receives());
  }
}

Status VerbsQueuePair::Modify(ibv_qp_attr attributes, int mask, const char* what) {
  const int error = ibv_modify_qp(pair_.get(), &attributes, mask);
  return error == 0 ? Status::Ok() : Status::Errno(error, std::string(what) + " a queue pair");
}

Result<Endpoint> VerbsQueuePair::LocalEndpoint() {
  return roce::Encode({.queue_pair = number(),
                       .first_sequence = first_sequence_,
                       .mtu = port_.mtu,
                       .max_reads = domain_->device().max_reads(),
                       .gid = port_.gid,
                       .port = roce::kUdpPort,
                       .lid = port_.lid});
}

Status VerbsQueuePair::Connect(Endpoint remote) {
  if (connected_) {
    return Status::Error(EISCONN, "connect a queue pair a second time");
  }
  ASSIGN_OR_RETURN(const roce::EndpointInfo peer,
                   roce::Decode(remote, options_.network->remote, domain_->device().link()));
  if (peer.port != roce::kUdpPort) {
    return Status::Error(EADDRINUSE, "the peer receives RoCE on UDP port " + std::to_string(peer.port) + ", because " +
                                         std::to_string(roce::kUdpPort) +
                                         " is taken there; an RDMA device can send to that port only");
  }
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = MtuCodeOf(std::min(port_.mtu, peer.mtu));
  attributes.dest_qp_num = peer.queue_pair;
  attributes.rq_psn = peer.first_sequence;
  attributes.max_dest_rd_atomic = static_cast<uint8_t>(domain_->device().max_reads());
  attributes.min_rnr_timer = kNotReadyTimer;
  attributes.ah_attr.port_num = port_.port;
  if (domain_->device().link() == roce::LinkLayer::kInfiniBand) {
    if (!std::equal(peer.gid.begin(), peer.gid.begin() + kSubnetBytes, port_.gid.begin())) {
      return Status::Error(ENETUNREACH, "the peer's InfiniBand port is in another subnet: " + ToString(peer.gid) +
                                            ", this end's is " + ToString(port_.gid));
    }
    attributes.ah_attr.dlid = peer.lid;
  } else {
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.grh.sgid_index = port_.index;
    attributes.ah_attr.grh.hop_limit = kHops;
    std::memcpy(attributes.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  }
  RETURN_IF_ERROR(Modify(attributes,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                         "make ready to receive"));
  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = first_sequence_;
  attributes.timeout = kTimeout;
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = options_.rnr_timeout <= kLongestRnrTimeout ? kNotReadyRetries : kNotReadyForEver;
  attributes.max_rd_atomic = static_cast<uint8_t>(std::min(domain_->device().max_asked_reads(), peer.max_reads));
  RETURN_IF_ERROR(Modify(
      attributes,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
      "make ready to send"));
  connected_ = true;
  return Status::Ok();
}

// ---------------------------------------------------------------------------------------------------------------
// Work requests.

WcStatus VerbsQueuePair::Check(const SendWorkRequest& request) const {
  if (request.opcode == Opcode::kRecv) {
    return WcStatus::kFatalErr;
  }
  if ((request.opcode == Opcode::kSend && request.local.length > options_.max_message) ||
      (IsAtomic(request.opcode) && request.local.length != kAtomicBytes)) {
    return WcStatus::kLocLenErr;
  }
  return WcStatus::kSuccess;
}

// As if the device had found it out: what follows is flushed.
void VerbsQueuePair::Refuse(const SendWorkRequest& request, WcStatus status) {
  Close();
  send_queue_->Collect();
  WorkCompletion completion;
  completion.id = request.id;
  completion.status = status;
  completion.opcode = request.opcode;
  completion.qp_num = number();
  untaken_sends_++;
  send_queue_->Put(completion);
}

int VerbsQueuePair::PostOne(const SendWorkRequest& request) {
  Elements elements;
  const std::optional<int> parts = ElementsOf(domain_->keys(), request.local, elements);
  if (!parts) {
    return EINVAL;
  }
  ibv_send_wr wanted{};
  wanted.wr_id = first_send_ + sends_.size();
  wanted.opcode = OpcodeOf(request.opcode);
  wanted.sg_list = elements.data();
  wanted.num_sge = *parts;
  wanted.imm_data = htobe32(request.imm);
  const bool speaks = request.signaled || ++silent_ >= std::max(options_.max_send / 4, 1U);
  if (speaks) {
    wanted.send_flags = IBV_SEND_SIGNALED;
    silent_ = 0;
  }
  if (request.send_fence) {
    wanted.send_flags |= IBV_SEND_FENCE;
  }
  if (IsAtomic(request.opcode)) {
    wanted.wr.atomic.remote_addr = request.remote_offset;
    wanted.wr.atomic.rkey = request.rkey.value;
    const bool compares = request.opcode == Opcode::kCompareSwap;
    wanted.wr.atomic.compare_add = compares ? request.compare : request.swap_or_add;
    wanted.wr.atomic.swap = request.swap_or_add;
  } else {
    wanted.wr.rdma.remote_addr = request.remote_offset;
    wanted.wr.rdma.rkey = request.rkey.value;
  }
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(pair_.get(), &wanted, &bad);
  if (error == 0) {
    sends_.push_back({request.id, request.opcode, request.signaled});
  }
  return error;
}

Status VerbsQueuePair::PostSend(std::span<const SendWorkRequest> requests) {
  if (!connected_) {
    return Status::Error(ENOTCONN, "post a send to a queue pair that is not connected");
  }
  const auto full = [&] { return requests.size() + sends_.size() + untaken_sends_ > options_.max_send; };
  if (full()) {
    send_queue_->Collect();
    if (full()) {
      return Status::Error(ENOMEM, "post more sends than the queue pair holds");
    }
  }
  for (const SendWorkRequest& request : requests) {
    if (const WcStatus status = failed_ ? WcStatus::kSuccess : Check(request); status != WcStatus::kSuccess) {
      Refuse(request, status);
      continue;
    }
    if (const int error = PostOne(request); error != 0) {
      Refuse(request, error == EINVAL ? WcStatus::kLocProtErr : WcStatus::kFatalErr);
    }
  }
  return Status::Ok();
}

Status VerbsQueuePair::PostRecv(std::span<const RecvWorkRequest> requests) {
  if (options_.shared_receives != nullptr) {
    return Status::Error(EINVAL, "post a receive to a queue pair that takes shared ones");
  }
  if (requests.size() > options_.max_recv - receives_) {
    return Status::Error(ENOMEM, "post more receives than the queue pair holds");
  }
  for (const RecvWorkRequest& request : requests) {
    Elements elements;
    const std::optional<int> parts = ElementsOf(domain_->keys(), request.local, elements);
    if (!parts) {
      return Status::Error(EINVAL, "post a receive with a key that is none");
    }
    ibv_recv_wr wanted{};
    wanted.wr_id = kReceive;
    wanted.sg_list = elements.data();
    wanted.num_sge = *parts;
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_recv(pair_.get(), &wanted, &bad); error != 0) {
      return Status::Errno(error, "post a receive");
    }
    receive_ids_.push_back(request.id);
    receives_++;
  }
  return Status::Ok();
}

Result<std::span<const std::byte>> VerbsQueuePair::SharedView(RKey) {
  return Status::Error(ENOTSUP, "map memory of another host");
}

void VerbsQueuePair::Close() {
  failed_ = true;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE);  // nothing that could be done when it fails
}

// ---------------------------------------------------------------------------------------------------------------
// Completions.

void VerbsQueuePair::OnCompletion(const ibv_wc& completion) {
  WorkCompletion result;
  result.status = StatusOf(completion.status);
  result.qp_num = number();
  failed_ = failed_ || result.status != WcStatus::kSuccess;
  const bool shared = VerbsSharedReceives::Has(completion.wr_id);
  if (shared || (completion.wr_id == kReceive && !receive_ids_.empty())) {  // on failure verbs does not say the opcode
    if (shared) {
      result.id = VerbsSharedReceives::Finish(completion.wr_id);
    } else {
      result.id = receive_ids_.front();
      receive_ids_.pop_front();
    }
    result.opcode = Opcode::kRecv;
    result.byte_len = completion.byte_len;
    result.has_imm = (completion.wc_flags & IBV_WC_WITH_IMM) != 0;
    result.imm = result.has_imm ? be32toh(completion.imm_data) : 0;
    receive_queue_->Put(result);
    return;
  }
  // Those before it have ended as well.
  while (!sends_.empty() && first_send_ <= completion.wr_id) {
    const Posted posted = sends_.front();
    sends_.pop_front();
    if (first_send_++ == completion.wr_id && (posted.wanted || result.status != WcStatus::kSuccess)) {
      result.id = posted.id;
      result.opcode = posted.opcode;
      untaken_sends_++;
      send_queue_->Put(result);
    }
  }
}

void VerbsQueuePair::OnTaken(const WorkCompletion& completion) {
  if (completion.opcode == Opcode::kRecv) {
    receives_--;  // of no interest where they are shared
  } else {
    untaken_sends_--;
  }
}

}  // namespace termfs::driver::verbs
