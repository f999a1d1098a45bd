#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "data/token_store.h"

namespace faultline {
namespace {

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t bytes_per_token;
  uint64_t vocab_size;
  uint64_t end_token;
  uint64_t tokens;
  uint64_t documents;
  uint64_t checksum;         // of what follows the header
  uint64_t header_checksum;  // of the fields above
};
static_assert(sizeof(Header) == 64);

constexpr char kMagic[8] = {'F', 'L', 'T', 'O', 'K', 'E', 'N', 'S'};
constexpr uint32_t kVersion = 1;

uint64_t checksum_of(const Header& header) {
  return XXH64(&header, offsetof(Header, header_checksum), 0);
}

struct Mapping {
  std::shared_ptr<const void> memory;
  uint64_t bytes;
};

Mapping map(const std::string& path) {
  const auto stop = [&] {
    throw IoError(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  };
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) stop();
  const std::shared_ptr<const void> closes(nullptr, [file](const void*) { ::close(file); });
  struct stat status {};
  if (::fstat(file, &status) != 0) stop();
  require(S_ISREG(status.st_mode), "{}: a token store was expected, this is no file", path);
  const auto bytes = static_cast<size_t>(status.st_size);
  require(bytes >= sizeof(Header),
          "{}: a token store begins with a header of 64 bytes, the file has {}", path, bytes);
  void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) stop();
  const auto unmap = [bytes](const void* p) { ::munmap(const_cast<void*>(p), bytes); };
  return {std::shared_ptr<const void>(data, unmap), bytes};
}

// Checks all that the header says against itself and the size of the file.
void check(const Header& header, uint64_t bytes, const std::string& path) {
  require(std::memcmp(header.magic, kMagic, sizeof kMagic) == 0, "{}: this is no token store",
          path);
  require(header.version == kVersion, "{}: a token store of version {}, this program reads {}",
          path, uint32_t{header.version}, kVersion);
  require(header.header_checksum == checksum_of(header),
          "{}: the header of the token store is damaged; delete the file and write it again", path);
  require(header.vocab_size >= 2 && header.vocab_size <= TokenStore::kLargestVocabulary,
          "{}: the token store's vocabulary of {} ids is impossible, 2 to {} fit", path,
          header.vocab_size, TokenStore::kLargestVocabulary);
  const uint64_t width = TokenStore::bytes_per_token(static_cast<int64_t>(header.vocab_size));
  require(header.end_token < header.vocab_size && header.bytes_per_token == width,
          "{}: the token store's vocabulary ({} ids, end token {}, {} bytes each) is impossible; "
          "its ids take {} bytes each",
          path, header.vocab_size, header.end_token, header.bytes_per_token, width);
  // Each is below the file's size, so the sum cannot overflow.
  const bool fits =
      header.documents >= 1 && header.documents < bytes / sizeof(int64_t) &&
      header.tokens <= bytes &&
      sizeof(Header) + (header.documents + 1) * sizeof(int64_t) + header.tokens * width == bytes;
  require(fits,
          "{}: the file has {} bytes, which is not what {} documents with {} tokens take; "
          "it is cut short or damaged, delete it and write it again",
          path, bytes, header.documents, header.tokens);
}

}  // namespace

void TokenStore::check_documents(const std::string& path) const {
  bool whole = starts_[0] == 0;
  for (int64_t d = 0; whole && d < documents_; ++d) {
    whole = starts_[d + 1] > starts_[d] && starts_[d + 1] <= starts_[documents_] &&
            (*this)[starts_[d + 1] - 1] == end_token_;
  }
  require(whole, "{}: the document borders of the token store are wrong", path);
  for (int64_t i = 0; i < size(); ++i) {
    const int32_t id = (*this)[i];
    require(id >= 0 && id < vocab_size_,
            "{}: token {} is {}, outside the vocabulary of {} ids; delete the file and write it "
            "again",
            path, i, static_cast<uint32_t>(id), vocab_size_);
  }
}

TokenStore TokenStore::open(const std::string& path) {
  const Mapping mapping = map(path);
  const auto* bytes = static_cast<const std::byte*>(mapping.memory.get());
  Header header;
  std::memcpy(&header, bytes, sizeof header);
  check(header, mapping.bytes, path);

  TokenStore store;
  store.memory_ = mapping.memory;
  store.documents_ = static_cast<int64_t>(header.documents);
  store.vocab_size_ = static_cast<int64_t>(header.vocab_size);
  store.end_token_ = static_cast<int32_t>(header.end_token);
  store.bytes_per_token_ = header.bytes_per_token;
  store.starts_ = reinterpret_cast<const int64_t*>(bytes + sizeof header);
  store.tokens_ = bytes + sizeof header + (header.documents + 1) * sizeof(int64_t);
  require(store.size() == static_cast<int64_t>(header.tokens) &&
              store.compute_checksum() == header.checksum,
          "{}: the tokens do not match their checksum; delete the file and write it again", path);
  store.checksum_ = header.checksum;
  store.check_documents(path);
  return store;
}

void TokenStore::write(const std::string& path) const {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.bytes_per_token = bytes_per_token_;
  header.vocab_size = static_cast<uint64_t>(vocab_size_);
  header.end_token = static_cast<uint64_t>(end_token_);
  header.tokens = static_cast<uint64_t>(size());
  header.documents = static_cast<uint64_t>(documents_);
  header.checksum = checksum_;
  header.header_checksum = checksum_of(header);

  const std::string temporary = fmt::format("{}.partial-{}", path, ::getpid());
  errno = 0;
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  for (const auto part : {std::as_bytes(std::span(&header, 1)), start_bytes(), token_bytes()}) {
    file.write(reinterpret_cast<const char*>(part.data()), static_cast<int64_t>(part.size()));
  }
  file.close();
  const bool written = !file.fail() && ::rename(temporary.c_str(), path.c_str()) == 0;
  if (!written) {
    const std::string why = errno != 0 ? std::strerror(errno) : "the write failed";
    ::unlink(temporary.c_str());
    throw IoError(fmt::format("cannot write {}: {}", path, why));
  }
}

}  // namespace faultline
