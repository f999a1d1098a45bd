#!/usr/bin/env bash
# Installs this build to a temporary prefix and builds examples/ against it, as a user of the package
# would; runs those whose op, fault and model are not Faultline's.
set -euo pipefail
: "${FAULTLINE_BUILD_DIR:?the build to install}" "${FAULTLINE_SOURCE_DIR:?the source tree}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the build was made with, the examples are made with: a sanitizer must be in both.
cached() { sed -n "s/^$1:[A-Z]*=//p" "$FAULTLINE_BUILD_DIR/CMakeCache.txt"; }
sanitize=$(cached FAULTLINE_SANITIZE)

cmake --install "$FAULTLINE_BUILD_DIR" --prefix "$work/prefix" >"$work/install.log" ||
  { tail -n 20 "$work/install.log"; exit 1; }
cmake -S "$FAULTLINE_SOURCE_DIR/examples" -B "$work/build" -G Ninja \
  -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$(cached CMAKE_CXX_COMPILER)" \
  -DCMAKE_CXX_FLAGS="${sanitize:+-fsanitize=$sanitize}" >"$work/configure.log" 2>&1 ||
  { cat "$work/configure.log"; exit 1; }
cmake --build "$work/build" --parallel 2 >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
"$work/build/example_custom_op"
"$work/build/example_own_fault" --fault loader.same-seed | grep "loader.same-seed  confidence"
"$work/build/example_own_model" --steps 3
