# Compiler flags shared by every target, and ccache.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

add_compile_options(-Wall -Wextra -ffp-contract=off)
if(FAULTLINE_WERROR)
  add_compile_options(-Werror)
endif()
# Designated initialisers name what they set; the rest has its default.
add_compile_options(-Wno-missing-field-initializers)
# GCC 12 sees what is not there: overlaps in std::string's operator+ (GCC bug 105651), and a std::sort
# of a small fixed array that runs past its end (GCC bug 107852).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  add_compile_options(-Wno-restrict -Wno-array-bounds)
endif()
if(NOT FAULTLINE_OPENMP)
  add_compile_options(-Wno-unknown-pragmas)
endif()

# The baseline of the whole tree; kernels/cpu compiles its own higher levels and chooses at start.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  add_compile_options(-march=x86-64-v2)
endif()

if(FAULTLINE_SANITIZE)
  add_compile_options(-fsanitize=${FAULTLINE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${FAULTLINE_SANITIZE})
  # GCC loses track of initialisation behind the checks that it inserts.
  add_compile_options(-Wno-maybe-uninitialized)
endif()

if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(FAULTLINE_CCACHE ccache)
  mark_as_advanced(FAULTLINE_CCACHE)
  if(FAULTLINE_CCACHE)
    # ccache takes a precompiled header only with these two liberties.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
        CCACHE_SLOPPINESS=pch_defines,time_macros ${FAULTLINE_CCACHE})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      add_compile_options(-fpch-preprocess)
    endif()
  endif()
endif()
