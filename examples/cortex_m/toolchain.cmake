# arm-none-eabi-gcc for the processor that -DCPU names.
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR ${CPU})
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES CPU)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY) # the linker script is not a part of the toolchain

set(CMAKE_C_COMPILER arm-none-eabi-gcc)
set(CMAKE_CXX_COMPILER arm-none-eabi-g++)
set(flags "-mcpu=${CPU} -mthumb -mfloat-abi=hard -ffunction-sections -fdata-sections")
set(CMAKE_C_FLAGS_INIT "${flags}")
set(CMAKE_CXX_FLAGS_INIT "${flags} -fno-exceptions -fno-rtti")
