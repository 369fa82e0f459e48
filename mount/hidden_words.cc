// SPDX-License-Identifier: Apache-2.0
#include "mount/hidden_words.h"

#include <cstring>
#include <string_view>

namespace termfs::mount {
namespace {

constexpr char kLongOption[] = "--secret";
constexpr std::string_view kValue = "secret=";

void Overwrite(char* from, size_t length) { std::memset(from, '*', length); }

// Where it is an option, and not the end of another one's name.
bool BeginsOption(std::string_view word, size_t at) {
  return at == 0 || word[at - 1] == ',' || word.substr(0, at) == "-o";
}

void HideIn(char* word) {
  const std::string_view text = word;
  const size_t length = sizeof(kLongOption) - 1;
  if (text.starts_with(kLongOption) && text.size() > length && text[length] == '=') {
    return Overwrite(word + length + 1, text.size() - length - 1);
  }
  for (size_t at = text.find(kValue); at != std::string_view::npos; at = text.find(kValue, at + kValue.size())) {
    if (BeginsOption(text, at)) {
      const size_t begin = at + kValue.size();
      const size_t end = text.find(',', begin);
      Overwrite(word + begin, (end == std::string_view::npos ? text.size() : end) - begin);
    }
  }
}

}  // namespace

HiddenWords::HiddenWords(int argc, char** argv) : words_(argv, argv + argc) {
  for (int i = 1; i < argc; i++) {
    if (std::strcmp(argv[i - 1], kLongOption) == 0) {
      Overwrite(argv[i], std::strlen(argv[i]));
    } else {
      HideIn(argv[i]);
    }
  }
  for (std::string& word : words_) {
    argv_.push_back(word.data());
  }
  argv_.push_back(nullptr);
}

}  // namespace termfs::mount
