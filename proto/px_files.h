/* proto/px_files.h - our .proto files as protoc describes them, for server reflection.
 *
 * Layer:   proto. Made by the build (deploy/cmake/BraidBuild.cmake).
 * Content: one serialised google.protobuf.FileDescriptorSet: braid.v1, grpc.health.v1,
 *          grpc.reflection.v1 and v1alpha.
 */
#ifndef PX_FILES_H
#define PX_FILES_H

#include <stddef.h>

extern const unsigned char px_files[];
extern const size_t px_files_bytes;

#endif
