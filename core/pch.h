#pragma once

// Precompiled: what nearly every file includes. A file still includes what it uses.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <complex>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>
