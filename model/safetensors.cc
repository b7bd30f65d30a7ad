#include "model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <system_error>

#include "base/error.h"
#include "model/json.h"

namespace kadence::model {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxRank = 16;

[[noreturn]] void throw_io(const std::string& message) { base::throw_error(base::ErrorCode::kIo, message); }

struct DTypeRow {
  const char* name;
  int bytes;
  std::optional<base::DType> type;
};
constexpr DTypeRow kDTypes[] = {
    {"F32", 4, base::DType::kF32}, {"BF16", 2, base::DType::kBF16}, {"F16", 2, base::DType::kF16},
    {"F64", 8, base::DType::kF64}, {"I64", 8, base::DType::kI64},   {"I32", 4, base::DType::kI32},
    {"U8", 1, base::DType::kU8},   {"BOOL", 1, std::nullopt},       {"I8", 1, std::nullopt},
    {"I16", 2, std::nullopt},      {"U16", 2, std::nullopt},        {"U32", 4, std::nullopt},
    {"U64", 8, std::nullopt},      {"F8_E4M3", 1, std::nullopt},    {"F8_E5M2", 1, std::nullopt},
    {"F8_E8M0", 1, std::nullopt},
};

bool multiply(uint64_t a, uint64_t b, uint64_t* out) { return !__builtin_mul_overflow(a, b, out); }

TensorInfo parse_entry(const std::string& name, const Json& entry, uint64_t data_bytes, const std::string& origin) {
  const auto fail = [&](const std::string& what) { throw_io(origin + ": tensor " + name + ": " + what); };
  if (!entry.is_object()) fail("wanted an object with dtype, shape and data_offsets, got " + brief(entry));
  for (const auto& [key, value] : entry.items())
    if (key != "dtype" && key != "shape" && key != "data_offsets") fail("unknown field " + key);
  TensorInfo t;
  const auto dtype = entry.find("dtype"), shape = entry.find("shape"), offsets = entry.find("data_offsets");
  if (dtype == entry.end() || !dtype->is_string())
    fail("wanted a dtype name" + (dtype == entry.end() ? ", got nothing" : ", got " + brief(*dtype)));
  t.dtype = dtype->get<std::string>();
  const auto row =
      std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const DTypeRow& r) { return t.dtype == r.name; });
  if (row == std::end(kDTypes)) fail("unknown dtype " + brief(*dtype));
  t.type = row->type;

  if (shape == entry.end() || !shape->is_array() || shape->size() > kMaxRank)
    fail("wanted a shape of at most " + std::to_string(kMaxRank) + " sizes" +
         (shape == entry.end() ? ", got nothing" : ", got " + brief(*shape)));
  uint64_t elements = 1;
  for (const Json& d : *shape) {
    if (!d.is_number_unsigned() || d.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
      fail("shape has " + brief(d) + ", wanted sizes >= 0");
    t.shape.push_back(static_cast<int64_t>(d.get<uint64_t>()));
    if (!multiply(elements, d.get<uint64_t>(), &elements) || elements > static_cast<uint64_t>(INT64_MAX))
      fail("the product of shape " + shape_text(t.shape) + " overflows");
  }
  t.elements = static_cast<int64_t>(elements);
  uint64_t bytes = 0;
  if (!multiply(elements, static_cast<uint64_t>(row->bytes), &bytes))
    fail("the bytes of shape " + shape_text(t.shape) + " overflow");

  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
      !(*offsets)[1].is_number_unsigned())
    fail("wanted data_offsets [begin, end]" + (offsets == entry.end() ? ", got nothing" : ", got " + brief(*offsets)));
  t.begin = (*offsets)[0].get<uint64_t>(), t.end = (*offsets)[1].get<uint64_t>();
  if (t.begin > t.end || t.end > data_bytes)
    fail("data_offsets " + brief(*offsets) + " are outside the " + std::to_string(data_bytes) + " bytes of data");
  if (t.end - t.begin != bytes)
    fail("data_offsets " + brief(*offsets) + " hold " + std::to_string(t.end - t.begin) + " bytes, but " + t.dtype +
         " " + shape_text(t.shape) + " needs " + std::to_string(bytes));
  return t;
}

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

TensorMap parse_safetensors_header(std::string_view prefix, uint64_t file_size, const std::string& origin) {
  if (file_size < 8 || prefix.size() < 8)
    throw_io(origin + ": " + std::to_string(file_size) + " bytes are too few for a safetensors file");
  uint64_t length = 0;
  for (int i = 0; i < 8; ++i)
    length |= static_cast<uint64_t>(static_cast<unsigned char>(prefix[static_cast<size_t>(i)])) << (8 * i);
  if (length > kMaxHeaderBytes)
    throw_io(origin + ": header length " + std::to_string(length) + " is above the format's limit of 100000000");
  if (length > file_size - 8 || length > prefix.size() - 8)
    throw_io(origin + ": truncated: the header has " + std::to_string(length) + " bytes, the file only " +
             std::to_string(file_size - 8) + " after its length");
  const std::string_view header = prefix.substr(8, length);
  if (header.empty() || header.front() != '{') throw_io(origin + ": the header does not begin with {");
  const uint64_t data_bytes = file_size - 8 - length;
  const Json doc = parse_json(header, origin, {kMaxHeaderBytes, 8});
  if (!doc.is_object()) throw_io(origin + ": the header is not an object");

  TensorMap tensors;
  for (const auto& [name, entry] : doc.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) throw_io(origin + ": __metadata__ is not an object");
      for (const auto& [key, value] : entry.items())
        if (!value.is_string()) throw_io(origin + ": __metadata__ " + key + " is not a string");
      continue;
    }
    if (name.empty() || name.size() > 4096)
      throw_io(origin + ": a tensor name of " + std::to_string(name.size()) + " bytes");
    tensors.emplace(name, parse_entry(name, entry, data_bytes, origin));
  }

  // In the order of their bytes the tensors must cover the data exactly.
  std::vector<const TensorMap::value_type*> order;
  for (const auto& t : tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->second.begin != b->second.begin ? a->second.begin < b->second.begin : a->second.end < b->second.end;
  });
  uint64_t at = 0;
  const std::string* before = nullptr;
  for (const auto* t : order) {
    if (t->second.begin < at) throw_io(origin + ": tensors " + *before + " and " + t->first + " overlap");
    if (t->second.begin > at)
      throw_io(origin + ": tensor " + t->first + ": a hole of " + std::to_string(t->second.begin - at) +
               " bytes before it");
    at = t->second.end;
    before = &t->first;
  }
  if (at != data_bytes)
    throw_io(origin + ": " + std::to_string(data_bytes) + " bytes of data, but the tensors " +
             (before ? "end at " : "(none) end at ") + std::to_string(at));
  return tensors;
}

struct Checkpoint::Mapping {
  std::string path;
  const char* base = nullptr;
  size_t bytes = 0;
  TensorMap tensors;

  explicit Mapping(const std::filesystem::path& file) : path(file.string()) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO must be refused, not waited for
    if (fd < 0) throw_io(path + ": cannot be opened: " + std::strerror(errno));
    struct stat st {};
    if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
      ::close(fd);
      throw_io(path + ": not a regular file");
    }
    bytes = static_cast<size_t>(st.st_size);
    void* p = bytes ? ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0) : nullptr;
    const int err = errno;
    ::close(fd);
    if (p == MAP_FAILED) throw_io(path + ": cannot be mapped: " + std::strerror(err));
    base = static_cast<const char*>(p);
    try {
      tensors = parse_safetensors_header({base, bytes}, bytes, path);
    } catch (...) {
      unmap();
      throw;
    }
  }
  ~Mapping() { unmap(); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  void unmap() {
    if (base) ::munmap(const_cast<char*>(base), bytes);
    base = nullptr;
  }
  const char* data() const {
    uint64_t length = 0;
    std::memcpy(&length, base, 8);  // checked by the parser; little-endian machines only, as everywhere in Kadence
    return base + 8 + length;
  }
};

Checkpoint::Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

void Checkpoint::add_file(const std::filesystem::path& file, const std::map<std::string, std::string>* weight_map) {
  files_.push_back(std::make_unique<Mapping>(file));
  const Mapping& m = *files_.back();
  for (const auto& [name, info] : m.tensors) {
    if (weight_map) {
      const auto it = weight_map->find(name);
      if (it == weight_map->end()) continue;  // not part of the model, as the index tells it
      if (it->second != file.filename().string())
        throw_io(m.path + ": tensor " + name + " is also in " + it->second + ", where the index has it");
    }
    tensors_.emplace(name, TensorView{m.data() + info.begin, &info, &m.path});
    data_bytes_ += info.end - info.begin;
  }
}

Checkpoint Checkpoint::open(const std::filesystem::path& dir) {
  Checkpoint c;
  c.origin_ = dir.string();
  std::error_code ec;
  const std::filesystem::path index = dir / "model.safetensors.index.json", single = dir / "model.safetensors";
  if (!std::filesystem::exists(index, ec)) {
    if (!std::filesystem::exists(single, ec))
      throw_io(dir.string() + ": neither model.safetensors.index.json nor model.safetensors is there");
    c.add_file(single, nullptr);
    return c;
  }
  const Json doc = read_json(index);
  const JsonObject top(&doc, index.string());
  const Json* map = top.find({"weight_map"});
  if (!map || !map->is_object() || map->empty()) throw_io(index.string() + ": weight_map is missing or empty");
  std::map<std::string, std::string> weight_map;
  std::set<std::string> files;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) throw_io(index.string() + ": tensor " + name + ": wanted a file name, got " + brief(file));
    const std::string f = file.get<std::string>();
    // A plain name: an index must not reach outside its folder.
    if (f.empty() || f.find('/') != std::string::npos || f.find('\0') != std::string::npos || f == "." || f == "..")
      throw_io(index.string() + ": tensor " + name + ": " + brief(file) + " is not a plain file name");
    weight_map[name] = f;
    files.insert(f);
  }
  for (const std::string& f : files) {
    if (!std::filesystem::exists(dir / f, ec))
      throw_io(index.string() + " names the file " + f + ", which is not there");
    c.add_file(dir / f, &weight_map);
  }
  for (const auto& [name, file] : weight_map)
    if (!c.tensors_.count(name)) throw_io(index.string() + ": tensor " + name + " is not in " + file);
  // Nothing is read by it, and writers that tie weights disagree about it.
  const Json* metadata = top.find({"metadata"});
  const Json* total = metadata ? JsonObject(metadata, index.string()).find({"total_size"}) : nullptr;
  if (total && *total != c.data_bytes_)
    c.index_note_ = index.string() + ": total_size: wanted the " + std::to_string(c.data_bytes_) +
                    " bytes of the tensors it lists, got " + brief(*total);
  return c;
}

const TensorView* Checkpoint::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

}  // namespace kadence::model
