// A folder for one test, removed afterwards.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#ifndef KADENCE_SOURCE_DIR
#define KADENCE_SOURCE_DIR "."  // kadence_test() sets the real one; headers must also compile alone
#endif

namespace kadence::model {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "kadence_model_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempDir() {
    std::error_code ec;
    std::filesystem::remove_all(path_, ec);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline std::filesystem::path model_dir(const std::string& name) {
  return std::filesystem::path(KADENCE_SOURCE_DIR) / "models" / name;
}

// Runs `f`, which must throw base::Error with `code` and every one of `parts` in its message.
#define EXPECT_ERROR(statement, error_code, ...)                                                            \
  do {                                                                                                      \
    try {                                                                                                   \
      statement;                                                                                            \
      ADD_FAILURE() << "no error from " #statement;                                                         \
    } catch (const ::kadence::base::Error& e_) {                                                            \
      EXPECT_EQ(::kadence::base::to_string(e_.code()), std::string(::kadence::base::to_string(error_code))) \
          << e_.what();                                                                                     \
      for (const std::string& part_ : std::initializer_list<std::string>{__VA_ARGS__})                      \
        EXPECT_NE(std::string(e_.what()).find(part_), std::string::npos)                                    \
            << "wanted " << part_ << " in: " << e_.what();                                                  \
    }                                                                                                       \
  } while (0)

}  // namespace kadence::model
