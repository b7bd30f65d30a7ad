// Turns granted requests into the packed batch that a model reads. No device, no pools: ids in, arrays out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"
#include "model/model.h"

namespace kadence::engine {

// A state that extend writes on its way: after `depth` tokens of the request, into `slot`.
struct CheckpointTarget {
  int64_t depth = 0;
  SlotId slot;
};

struct ExtendRow {
  Request* request = nullptr;
  int64_t tokens = 0;                         // of the grant, from request->computed
  std::vector<CheckpointTarget> checkpoints;  // ascending
  int64_t begin() const { return request->computed; }
  int64_t end() const { return request->computed + tokens; }
};

// Row `row` of the batch wants the logits after its token at absolute position `position`.
struct LogitWant {
  int32_t row = 0;
  int64_t position = 0;
};

struct BuiltBatch {
  model::ForwardBatch batch;
  std::vector<LogitWant> wants;  // parallel to batch.logit_tokens
};

// All prefill rows of a step. A row's first grant reads the slot that it resumes from (the tree's, locked) and writes
// its working slot; later grants do both in the working slot. Logits: those that score a prompt position, and always
// those of the row's last token, which tell a NaN before anything is published and from which the first token is
// sampled.
BuiltBatch build_extend(std::span<const ExtendRow> rows, int64_t page_size);

// All decoding rows, one token each. Logits only where the next token is not known yet (a retracted request's are).
BuiltBatch build_step(std::span<Request* const> rows, int64_t page_size);

}  // namespace kadence::engine
