#include "transport/mux/segment_receiver.h"

#include <utility>

namespace geocomm::transport {

using core::Result;
using core::Status;

Result<SegmentReceiver::Begun> SegmentReceiver::begin(const WireHeader& header) {
  GEOCOMM_RETURN_IF_ERROR(window_.check(header.sequence));
  Begun begun;
  if (window_.has(header.sequence)) {
    GEOCOMM_RETURN_IF_ERROR(check_segment(header));  // for its length
    return begun;
  }
  if (const auto found = begun_.find(header.sequence); found != begun_.end()) {
    const Reception& first = *found->second;
    GEOCOMM_ASSIGN_OR_RETURN(begun.copy.incoming,
                             table_.begin_again(first.op, first.chunk, first.segment, header));
    begun.copy.reception = found->second;
    return begun;
  }
  // spec channel 9.1: "After a Close, a side MUST take a new segment"
  if (complete_) {
    return core::corrupt("segment ", header.sequence, " after Close");
  }
  GEOCOMM_ASSIGN_OR_RETURN(ReceiveTable::Begun opened, table_.begin(header));
  begun.copy.incoming = std::move(opened.incoming);
  begun.announce = opened.announce;
  begun.is_new = true;
  begun.copy.reception = std::make_shared<Reception>(header.sequence, begun.copy.incoming);
  begun_.emplace(header.sequence, begun.copy.reception);
  return begun;
}

void SegmentReceiver::finish(SegmentCopy copy) {
  if (!copy.reception) return;
  (void)window_.add(copy.reception->number);
  // spec channel 6.1: "a receiver MUST NOT write a byte of another after it."
  if (!copy.reception->finish()) return;
  begun_.erase(copy.reception->number);
  table_.finish(std::move(copy.incoming));
}

}  // namespace geocomm::transport
