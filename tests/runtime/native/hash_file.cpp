// Prints SHA-256 digests of a file's first 0, 1, 2, ... bytes: by the portable code, and by the best one for this
// processor, which takes them in two parts.

#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

#include "sha256.h"

namespace {

void print(nfat::Sha256 sha256) {
  for (const uint8_t byte : sha256.finish()) {
    std::printf("%02x", byte);
  }
}

} // namespace

int main(int, char** values) {
  std::ifstream file(values[1], std::ios::binary);
  const std::vector<char> content{std::istreambuf_iterator<char>(file), {}};
  for (size_t size = 0; size <= content.size(); ++size) {
    const std::vector<uint8_t> exact(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(size));
    nfat::Sha256 portable(nfat::sha256_blocks_portable);
    portable.update(exact.data(), exact.size());
    nfat::Sha256 best;
    best.update(exact.data(), size / 3);
    best.update(exact.data() + size / 3, size - size / 3);
    print(portable);
    std::putchar(' ');
    print(best);
    std::putchar('\n');
  }
}
