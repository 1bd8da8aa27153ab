# find_package(@NAME@ CONFIG) with the folder above lib/ in CMAKE_PREFIX_PATH:
#   target_link_libraries(program PRIVATE @NAME@::@NAME@)   the static library
#   target_link_libraries(program PRIVATE @NAME@::shared)   the shared one, where there is one
include(CMakeFindDependencyMacro)
find_dependency(Threads)

get_filename_component(@NAME@_ROOT "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET @NAME@::@NAME@)
  add_library(@NAME@::@NAME@ STATIC IMPORTED)
  set_target_properties(@NAME@::@NAME@ PROPERTIES
    IMPORTED_LOCATION "${@NAME@_ROOT}/lib/lib@NAME@.a"
    IMPORTED_LINK_INTERFACE_LANGUAGES C
    INTERFACE_INCLUDE_DIRECTORIES "${@NAME@_ROOT}/include"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;m")
  if(EXISTS "${@NAME@_ROOT}/lib/lib@NAME@.so")
    add_library(@NAME@::shared SHARED IMPORTED)
    set_target_properties(@NAME@::shared PROPERTIES
      IMPORTED_LOCATION "${@NAME@_ROOT}/lib/lib@NAME@.so"
      IMPORTED_SONAME "lib@NAME@.so"
      INTERFACE_INCLUDE_DIRECTORIES "${@NAME@_ROOT}/include")
  endif()
endif()
