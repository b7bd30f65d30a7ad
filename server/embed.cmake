# cmake -DIN=page.html -DOUT=page.cc -P embed.cmake: a text file as C++. Pieces, because literals have a length limit.
file(READ "${IN}" hex HEX)
string(LENGTH "${hex}" length)
set(body "")
set(at 0)
while(at LESS length)
  string(SUBSTRING "${hex}" ${at} 160 line)
  string(REGEX REPLACE "(..)" "0x\\1," line "${line}")
  string(APPEND body "    ${line}\n")
  math(EXPR at "${at} + 160")
endwhile()
file(WRITE "${OUT}" "#include \"server/page.h\"

namespace kadence::server {
namespace {
const unsigned char kPage[] = {
${body}};
}  // namespace

const std::string& page_html() {
  static const std::string page(reinterpret_cast<const char*>(kPage), sizeof kPage);
  return page;
}

}  // namespace kadence::server
")
