// Private to model/: byte-pair merging over byte tokens. A merge is (left id, right id) -> (rank, id); the lowest rank
// goes first, the leftmost among equals. Source: Sennrich et al. 2016 over bytes, as in GPT-2 and tiktoken.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kadence::model {

struct BpeMerge {
  int32_t rank = -1;
  int32_t id = -1;
};

// How a piece is merged: by scanning, which is quick for words, or with a heap, whose cost stays n log n. Same result.
enum class BpeMethod { kAuto, kScan, kHeap };

class Bpe {
 public:
  // `tokens`: bytes of every id, holes empty. `whole_pieces`: a piece that is a token is that token, whatever the
  // merges.
  Bpe(std::vector<std::string> tokens, bool whole_pieces);
  // False if the pair has one already.
  bool add_merge(int32_t left, int32_t right, BpeMerge merge);
  // Merges as tiktoken has them: any two tokens whose concatenation is a token, ranked by its id.
  void add_merges_by_rank();

  void encode(std::string_view piece, std::vector<int32_t>& out, BpeMethod method = BpeMethod::kAuto) const;
  int32_t id_of(std::string_view bytes) const;  // -1 = not a token
  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  const BpeMerge* find(int32_t left, int32_t right) const;
  void merge_scan(std::vector<int32_t>& ids) const;
  void merge_heap(std::vector<int32_t>& ids) const;

  std::vector<std::string> tokens_;
  bool whole_pieces_;
  std::array<int32_t, 256> byte_ids_;
  std::unordered_map<std::string_view, int32_t> ids_;  // views into tokens_
  std::unordered_map<uint64_t, BpeMerge> merges_;
};

}  // namespace kadence::model
