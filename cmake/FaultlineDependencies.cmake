# Finds what the libraries link to. Used by the build and, installed beside faultline-config.cmake,
# by find_package(faultline); each use says with FAULTLINE_ONEDNN and FAULTLINE_OPENMP what it needs.

# Makes the imported target faultline_dep::<name> from a header and, where given, a library.
function(faultline_dependency name package header library)
  if(TARGET faultline_dep::${name})
    return()
  endif()
  find_path(FAULTLINE_${name}_INCLUDE_DIR ${header})
  mark_as_advanced(FAULTLINE_${name}_INCLUDE_DIR FAULTLINE_${name}_LIBRARY)
  if(library)
    find_library(FAULTLINE_${name}_LIBRARY ${library})
  endif()
  if(NOT FAULTLINE_${name}_INCLUDE_DIR OR (library AND NOT FAULTLINE_${name}_LIBRARY))
    message(FATAL_ERROR
      "${name} was not found (header ${header}${library}). On Debian and Ubuntu: apt install ${package}. "
      "Elsewhere: install it and, if its place is unusual, add that to CMAKE_PREFIX_PATH.")
  endif()
  if(library)
    add_library(faultline_dep::${name} UNKNOWN IMPORTED GLOBAL)
    set_target_properties(faultline_dep::${name} PROPERTIES
      IMPORTED_LOCATION "${FAULTLINE_${name}_LIBRARY}")
  else()
    add_library(faultline_dep::${name} INTERFACE IMPORTED GLOBAL)
  endif()
  target_include_directories(faultline_dep::${name} SYSTEM INTERFACE
    "${FAULTLINE_${name}_INCLUDE_DIR}")
endfunction()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
faultline_dependency(Random123 librandom123-dev Random123/philox.h "")
faultline_dependency(Highway libhwy-dev hwy/highway.h hwy)
faultline_dependency(SLEEF libsleef-dev sleef.h sleef)
faultline_dependency(xxHash libxxhash-dev xxhash.h xxhash)
faultline_dependency(PCRE2 libpcre2-dev pcre2.h pcre2-8)
if(FAULTLINE_ONEDNN)
  faultline_dependency(oneDNN libdnnl-dev dnnl.hpp dnnl)
endif()
if(FAULTLINE_OPENMP)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
endif()
