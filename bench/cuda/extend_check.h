// Parts of extend_check.
#pragma once

#include <string>
#include <vector>

#include "device/device.h"

namespace kadence::ops::testing {

// What is checked; --backend NAME.
inline std::string backend = "sm90";

// Counts a failure if there are faults, and prints the first of them.
void report(const std::string& name, const std::vector<std::string>& faults);

// Metadata on the device that no host has judged: rows are skipped, reported, and nothing else changes.
void metadata_faults(device::Stream& stream);
// A call on a stream that is blocked returns before the stream goes on.
void returns_at_once(device::Stream& stream);

}  // namespace kadence::ops::testing
