# Lists of what the folders hold. Registration is explicit: a case or detector is in the program
# because its file is in the folder, and a missing definition is a link error that names it.

function(faultline_write_list file macro folder)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cpp)
  set(lines "// Generated from ${folder}/*.cpp.\n")
  foreach(source IN LISTS sources)
    get_filename_component(stem ${source} NAME_WE)
    string(APPEND lines "${macro}(${stem})\n")
  endforeach()
  file(CONFIGURE OUTPUT ${generated_dir}/${file} CONTENT "${lines}" @ONLY)
endfunction()

faultline_write_list(lab/case_list.inc FAULTLINE_CASE lab/cases)
faultline_write_list(diagnose/detector_list.inc FAULTLINE_DETECTOR diagnose/detectors)

configure_file(${PROJECT_SOURCE_DIR}/cmake/version.h.in ${generated_dir}/version.h @ONLY)
