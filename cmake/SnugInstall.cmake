# cmake --install, and the files by which find_package(snug) finds the result:
#   find_package(snug COMPONENTS core)    the torch-free part
#   find_package(snug)                    all of it; needs the same torch
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/snug)

install(TARGETS snug_core EXPORT snugCore LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT snugCore NAMESPACE snug:: DESTINATION ${package_folder} FILE snugCoreTargets.cmake)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/hardware DESTINATION ${CMAKE_INSTALL_DATADIR}/snug)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/snug DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
if(SNUG_HAS_TORCH)
  if(SNUG_HAS_NCCL)
    cmake_path(GET SNUG_NCCL_LIBRARY PARENT_PATH nccl_folder)
  endif()
  set_target_properties(snug PROPERTIES INSTALL_RPATH "$ORIGIN;${SNUG_CUBLASLT_FOLDER};${SNUG_TORCH}/lib;${nccl_folder}")
  install(TARGETS snug snug_torch EXPORT snugTorch LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  if(TARGET snug_cli)
    set_target_properties(snug_cli PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${SNUG_TORCH}/lib")
    install(TARGETS snug_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
  install(EXPORT snugTorch NAMESPACE snug:: DESTINATION ${package_folder} FILE snugTorchTargets.cmake)
endif()
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/snugConfig.cmake.in ${CMAKE_BINARY_DIR}/snugConfig.cmake
                              INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/snugConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/snugConfig.cmake ${CMAKE_BINARY_DIR}/snugConfigVersion.cmake DESTINATION ${package_folder})
