// What the operators of the module share: streams with their workspace, plans, uploaded metadata.
#pragma once

#include <memory>
#include <mutex>

#include "arrays.h"

namespace kadence::python {

// A stream and the memory that calls on it use in turn. One call at a time on the CPU: `lock` covers the call.
// The workspace grows when a call needs more; CUDA graphs must bring their own, since growing frees the old one.
struct Stream {
  explicit Stream(device::Stream s) : stream(std::move(s)) {}
  void* workspace(size_t bytes);
  device::Stream stream;
  std::mutex lock;
  device::Buffer buffer;
};

// Extend's rows, slots and checkpoints on the device: uploaded from the host, or arrays of the caller.
struct Metadata {
  ops::KdaMetadata view;
  int64_t tokens = -1;                                                       // T it was validated for; -1 = unseen
  int64_t state_in_slots = -1, state_out_slots = -1, checkpoint_slots = -1;  // sizes it was validated for; -1 = unseen
  bool states_shared = true, checkpoints_shared = true;                      // may the views be one memory?
  bool seq_int64 = false;
  device::Buffer buffer;
  std::vector<nb::object> keep;
};

// The workspace of a call: the caller's array, or the stream's own.
void* workspace_of(nb::handle object, size_t bytes, Stream& stream);

void bind_operators(nb::module_& m);

}  // namespace kadence::python
