#pragma once

#include "io/json.h"

namespace faultline::lab {

// What must not be read at a glance, and shows when it was changed: the text under a stream of
// random bits, and its checksum, from which the bits are made. Keeps nothing from those who read
// this source. The same content gives the same seal.
Json seal(const Json& content);

// What was sealed. Throws InvalidArgument when the seal was changed or is none.
Json unseal(const Json& sealed);

bool is_sealed(const Json& json);

}  // namespace faultline::lab
