// The plugin's entry: UCX's context, which its links share.
#include <ucp/api/ucp.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/str.h"
#include "transport/rdma/rdma_fabric.h"
#include "transport/rdma/ucx/ucx_link.h"
#include "transport/rdma/ucx/ucx_names.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {

class UcxFabric final : public RdmaFabric {
 public:
  ~UcxFabric() override {
    if (context_ != nullptr) ucp_cleanup(context_);
  }

  Status start(const RdmaOptions& options) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_NAME;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    params.mt_workers_shared = 1;
    params.name = "geocomm";
    ucp_config_t* config = nullptr;
    if (const auto status = ucp_config_read(nullptr, nullptr, &config); status != UCS_OK) {
      return ucx_status("cannot read its configuration (UCX_* variables)", status);
    }
    const auto status = ucp_init(&params, config, &context_);
    ucp_config_release(config);
    if (status != UCS_OK) return ucx_status("cannot start (check UCX_* variables, such as UCX_TLS)", status);
    const std::vector<std::string> found = transports_of(context_);
    options_.allow_tcp = options.allow_tcp;
    options_.notices_failures = !std::all_of(found.begin(), found.end(), is_local);
    if (options.allow_tcp || std::any_of(found.begin(), found.end(), is_rdma)) return Status::ok();
    return {StatusCode::Unsupported,
            core::str("transport=rdma, but UCX ", ucp_get_version_string(),
                      " finds no RDMA device on this "
                      "machine, only the transports ",
                      listed(found),
                      ". Check that the card and its driver are there (ibv_devinfo), that "
                      "this UCX was built with verbs (ucx_info -d), and UCX_TLS and UCX_NET_DEVICES; or use "
                      "GEOCOMM_TRANSPORT=tcp")};
  }

  Result<std::unique_ptr<RdmaLink>> open_link(RdmaLinkDelegate& delegate) override {
    return UcxLink::open(context_, options_, delegate);
  }

 private:
  ucp_context_h context_ = nullptr;
  UcxLinkOptions options_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) void geocomm_open_rdma_fabric(
    std::uint32_t seam, const RdmaOptions& options, Result<std::unique_ptr<RdmaFabric>>& out) {
  if (seam != kRdmaSeam) {
    out =
        Status(StatusCode::VersionMismatch, core::str("the RDMA plugin is of another build (seam ", kRdmaSeam,
                                                      ", wanted ", seam, "): install geocomm anew"));
    return;
  }
  auto fabric = std::make_unique<UcxFabric>();
  if (Status status = fabric->start(options); !status.is_ok()) {
    out = std::move(status);
    return;
  }
  out = std::unique_ptr<RdmaFabric>(std::move(fabric));
}

}  // namespace geocomm::transport
