#include "transport/rdma/ucx/ucx_link.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "core/deadline.h"
#include "core/str.h"
#include "transport/rdma/ucx/ucx_names.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {
constexpr unsigned kSegmentMessage = 0;
// Rounds of progress in a row, before others get their turn.
constexpr int kMostRounds = 64;
constexpr std::chrono::milliseconds kPatienceToLetGo{200};

// For a message from or into host memory, whose callback (the caller's to set) gets `transfer`.
ucp_request_param_t params_of(void* transfer) {
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.user_data = transfer;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  return params;
}
}  // namespace

Status ucx_status(const char* what, ucs_status_t status) {
  return {StatusCode::Network, core::str("UCX: ", what, ": ", ucs_status_string(status))};
}

Result<std::unique_ptr<RdmaLink>> UcxLink::open(ucp_context_h context, const UcxLinkOptions& options,
                                                RdmaLinkDelegate& delegate) {
  auto link = std::unique_ptr<UcxLink>(new UcxLink(options, delegate));
  GEOCOMM_RETURN_IF_ERROR(link->start(context));
  return std::unique_ptr<RdmaLink>(std::move(link));
}

Status UcxLink::start(ucp_context_h context) {
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  if (const auto status = ucp_worker_create(context, &worker, &worker_); status != UCS_OK) {
    return ucx_status("no worker", status);
  }
  if (const auto status = ucp_worker_get_efd(worker_, &event_fd_); status != UCS_OK) {
    return ucx_status("no event descriptor", status);
  }
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kSegmentMessage;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &UcxLink::on_message;
  handler.arg = this;
  if (const auto status = ucp_worker_set_am_recv_handler(worker_, &handler); status != UCS_OK) {
    return ucx_status("no active messages", status);
  }
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  if (const auto status = ucp_worker_get_address(worker_, &address, &bytes); status != UCS_OK) {
    return ucx_status("no address", status);
  }
  const auto* begin = reinterpret_cast<const std::byte*>(address);
  address_.assign(begin, begin + bytes);
  ucp_worker_release_address(worker_, address);
  return Status::ok();
}

UcxLink::~UcxLink() {
  silence();
  if (worker_ == nullptr) return;
  let_go();
  // From here on nobody touches the memory of what did not complete.
  ucp_worker_destroy(worker_);
}

void UcxLink::let_go() {
  const auto deadline = core::Deadline::after(kPatienceToLetGo);
  void* closing = nullptr;
  if (endpoint_ != nullptr && options_.notices_failures) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    closing = ucp_ep_close_nbx(endpoint_, &param);
  }
  if (UCS_PTR_IS_ERR(closing)) closing = nullptr;
  const auto closed = [&] {
    return closing == nullptr || ucp_request_check_status(closing) != UCS_INPROGRESS;
  };
  while ((!closed() || !transfers_.empty()) && !deadline.expired()) {
    if (ucp_worker_progress(worker_) == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  if (closing != nullptr) ucp_request_free(closing);
}

Status UcxLink::connect(std::span<const std::byte> peer_address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer_address.data());
  params.err_mode = options_.notices_failures ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
  params.err_handler = {&UcxLink::on_error, this};
  if (const auto status = ucp_ep_create(worker_, &params, &endpoint_); status != UCS_OK) {
    endpoint_ = nullptr;
    return ucx_status("no way to the peer", status);
  }
  const std::vector<std::string> chosen = transports_of(endpoint_);
  transports_ = listed(chosen);
  if (options_.allow_tcp || std::any_of(chosen.begin(), chosen.end(), is_rdma)) return Status::ok();
  return {
      StatusCode::Unsupported,
      core::str("transport=rdma, but between these two machines UCX uses ", transports_,
                ", none of which is RDMA: check that both have a device on the same fabric (ibv_devinfo), "
                "and UCX_NET_DEVICES and UCX_TLS on both; or take these sites out of GEOCOMM_TRANSPORT")};
}

UcxLink::Transfer& UcxLink::begin(std::function<void()> done) {
  Transfer& transfer = transfers_.emplace_back();
  transfer.link = this;
  transfer.done = std::move(done);
  transfer.self = std::prev(transfers_.end());
  return transfer;
}

void UcxLink::started(Transfer& transfer, ucs_status_ptr_t request) {
  if (request == nullptr) {
    finish(transfer, UCS_OK);
  } else if (UCS_PTR_IS_ERR(request)) {
    finish(transfer, UCS_PTR_STATUS(request));
  }
}

void UcxLink::finish(Transfer& transfer, ucs_status_t status) {
  const std::function<void()> done = std::move(transfer.done);
  transfers_.erase(transfer.self);
  if (status != UCS_OK) {
    break_with(status);
  } else if (delegate_ != nullptr) {
    done();
  }
}

void UcxLink::break_with(ucs_status_t status) {
  if (broken_ == UCS_OK) broken_ = status;
}

void UcxLink::send(RdmaOutgoing message) {
  Transfer& transfer = begin(std::move(message.on_sent));
  transfer.header = message.header;
  ucp_request_param_t params = params_of(&transfer);
  params.cb.send = &UcxLink::on_sent;
  started(transfer,
          ucp_am_send_nbx(endpoint_, kSegmentMessage, transfer.header.data(), transfer.header.size(),
                          message.payload.data(), message.payload.size(), &params));
}

void UcxLink::on_sent(void* request, ucs_status_t status, void* transfer) {
  ucp_request_free(request);
  auto& sent = *static_cast<Transfer*>(transfer);
  sent.link->finish(sent, status);
}

void UcxLink::on_fetched(void* request, ucs_status_t status, std::size_t, void* transfer) {
  on_sent(request, status, transfer);
}

void UcxLink::on_error(void* link, ucp_ep_h, ucs_status_t status) {
  static_cast<UcxLink*>(link)->break_with(status);
}

ucs_status_t UcxLink::on_message(void* link, const void* header, std::size_t header_bytes, void* data,
                                 std::size_t bytes, const ucp_am_recv_param_t* param) {
  const std::span<const std::byte> head(static_cast<const std::byte*>(header), header_bytes);
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  return static_cast<UcxLink*>(link)->receive(head, data, bytes, rendezvous);
}

ucs_status_t UcxLink::receive(std::span<const std::byte> header, void* data, std::size_t bytes,
                              bool rendezvous) {
  if (delegate_ == nullptr) return UCS_OK;
  std::optional<RdmaIncoming> incoming = delegate_->on_message(header, bytes);
  if (!incoming) return UCS_OK;
  if (rendezvous && incoming->dest != nullptr) {
    Transfer& transfer = begin(std::move(incoming->on_received));
    ucp_request_param_t params = params_of(&transfer);
    params.cb.recv_am = &UcxLink::on_fetched;
    started(transfer, ucp_am_recv_data_nbx(worker_, data, incoming->dest, bytes, &params));
    return UCS_INPROGRESS;
  }
  if (!rendezvous && incoming->dest != nullptr && bytes > 0) std::memcpy(incoming->dest, data, bytes);
  incoming->on_received();
  return UCS_OK;
}

Result<bool> UcxLink::progress() {
  for (int round = 0; round < kMostRounds; ++round) {
    if (ucp_worker_progress(worker_) == 0) break;
  }
  if (broken_ != UCS_OK) return ucx_status("the link broke", broken_);
  const auto status = ucp_worker_arm(worker_);
  if (status == UCS_OK) return false;
  if (status == UCS_ERR_BUSY) return true;
  return ucx_status("cannot wait for events", status);
}

}  // namespace geocomm::transport
