# cmake -DFILE=... -P: takes the build tree's RUNPATH out of a program, as `cmake --install` does. CMake ends it
# with ":", an empty entry: the loader would look for every library in the working directory first.
file(RPATH_REMOVE FILE ${FILE})
