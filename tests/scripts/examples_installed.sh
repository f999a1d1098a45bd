#!/usr/bin/env bash
# Installs this build to a temporary prefix and builds examples/ against it, as a user of the package
# would; runs those whose op, fault and model are not Faultline's, and one that throws.
set -euo pipefail
: "${FAULTLINE_BUILD_DIR:?the build to install}" "${FAULTLINE_SOURCE_DIR:?the source tree}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the build was made with, the examples are made with: a sanitizer must be in both.
cached() { sed -n "s/^$1:[A-Z]*=//p" "$FAULTLINE_BUILD_DIR/CMakeCache.txt"; }
sanitize=$(cached FAULTLINE_SANITIZE)

cmake --install "$FAULTLINE_BUILD_DIR" --prefix "$work/prefix" >"$work/install.log" ||
  { tail -n 20 "$work/install.log"; exit 1; }
cp -r "$FAULTLINE_SOURCE_DIR/examples" "$work/examples"
cat >"$work/examples/throws.cpp" <<'END'
#include "core/error.h"
#include "example.h"

void throw_after_a_step(Example& example) {
  example.next_step();
  example.end_step(/*loss=*/1, /*lr=*/0);
  example.next_step();
  faultline::fail("thrown at step {}", example.step());
}
int main(int argc, char** argv) {
  return run_example(argc, argv, {.about = "Throws.", .steps = 3}, &throw_after_a_step);
}
END
cmake -S "$work/examples" -B "$work/build" -G Ninja \
  -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$(cached CMAKE_CXX_COMPILER)" \
  -DCMAKE_CXX_FLAGS="${sanitize:+-fsanitize=$sanitize}" >"$work/configure.log" 2>&1 ||
  { cat "$work/configure.log"; exit 1; }
cmake --build "$work/build" --parallel 2 >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
"$work/build/example_custom_op"
"$work/build/example_own_fault" --fault loader.same-seed | grep "loader.same-seed  confidence"
"$work/build/example_own_model" --steps 3

code=0
"$work/build/example_throws" --out "$work/thrown" 2>"$work/thrown.log" || code=$?
if [ "$code" != 2 ] || ! grep -qx "example_throws: thrown at step 2" "$work/thrown.log" ||
  [ ! -f "$work/thrown/verdict.json" ]; then
  echo "a run that threw exits $code, and leaves: $(ls "$work/thrown")"
  exit 1
fi
