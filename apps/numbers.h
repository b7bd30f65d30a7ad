// Numbers to and from text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/table.h"

namespace kadence::apps {

// Bytes of "80GiB", "512MiB", "1.5GB", "4096": KiB, MiB, GiB, TiB count in 1024s, KB, MB, GB, TB in 1000s. Throws
// UsageError.
int64_t parse_bytes(const std::string& flag, std::string_view text);

// A float for JSON: the double whose shortest text is the float's shortest text that reads back to the same float. So
// equal floats print equal and different ones differ.
double shortest(float value);
Json shortest(std::span<const float> values);

// Token ids: a JSON array, or integers apart by spaces, newlines or commas. `origin` names the text in errors. Throws
// Error{kIo}.
std::vector<int32_t> parse_ids(std::string_view text, const std::string& origin);

// Comma-separated positive integers of a flag. Throws UsageError.
std::vector<int64_t> parse_list(const std::string& flag, std::string_view text);

// Throws Error{kIo} if standard input is closed or not open for reading; `who` asked for it.
void require_stdin(const std::string& who);
// Whole file, "-" = standard input. Throws Error{kIo}.
std::string read_text(const std::string& path);

}  // namespace kadence::apps
