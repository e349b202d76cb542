// An RdmaLink over UCX: a worker of its own with one endpoint, whose segments are active messages. Small ones
// come with the message, large ones are fetched into the memory that the delegate names (UCX's rendezvous).
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "transport/rdma/rdma_fabric.h"

namespace geocomm::transport {

// How the links of a context are made.
struct UcxLinkOptions {
  bool allow_tcp = false;
  // UCX's shared memory cannot notice that a peer is gone: such links are made without, and whoever uses them
  // has to notice.
  bool notices_failures = true;
};

// Network, with UCX's words.
core::Status ucx_status(const char* what, ucs_status_t status);

class UcxLink final : public RdmaLink {
 public:
  static core::Result<std::unique_ptr<RdmaLink>> open(ucp_context_h context, const UcxLinkOptions& options,
                                                      RdmaLinkDelegate& delegate);
  ~UcxLink() override;

  std::span<const std::byte> address() const override { return address_; }
  int event_fd() const override { return event_fd_; }
  core::Status connect(std::span<const std::byte> peer_address) override;
  std::string transports() const override { return transports_; }
  void send(RdmaOutgoing message) override;
  core::Result<bool> progress() override;
  void silence() override { delegate_ = nullptr; }

 private:
  // A message under way. UCX has its address until it completes.
  struct Transfer {
    UcxLink* link = nullptr;
    RdmaHeader header{};
    std::function<void()> done;  // owns the memory
    std::list<Transfer>::iterator self;
  };

  UcxLink(const UcxLinkOptions& options, RdmaLinkDelegate& delegate)
      : options_(options), delegate_(&delegate) {}
  core::Status start(ucp_context_h context);
  static ucs_status_t on_message(void* link, const void* header, std::size_t header_bytes, void* data,
                                 std::size_t bytes, const ucp_am_recv_param_t* param);
  static void on_sent(void* request, ucs_status_t status, void* transfer);
  static void on_fetched(void* request, ucs_status_t status, std::size_t bytes, void* transfer);
  static void on_error(void* link, ucp_ep_h endpoint, ucs_status_t status);
  ucs_status_t receive(std::span<const std::byte> header, void* data, std::size_t bytes, bool rendezvous);
  Transfer& begin(std::function<void()> done);
  // Starting it returned `request`.
  void started(Transfer& transfer, ucs_status_ptr_t request);
  void finish(Transfer& transfer, ucs_status_t status);
  void break_with(ucs_status_t status);
  void let_go();

  const UcxLinkOptions options_;
  RdmaLinkDelegate* delegate_;  // null: silenced
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  int event_fd_ = -1;
  std::vector<std::byte> address_;
  std::string transports_;
  std::list<Transfer> transfers_;
  ucs_status_t broken_ = UCS_OK;
};

}  // namespace geocomm::transport
