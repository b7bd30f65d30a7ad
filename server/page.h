// The live view: one HTML file, built into the binary.
#pragma once

#include <string>

namespace kadence::server {

const std::string& page_html();

}  // namespace kadence::server
