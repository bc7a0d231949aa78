/* ps_server/ps_bytes.h - numbers in stored bytes: little-endian in values, big-endian in keys (so
 * that RocksDB's default order is the numeric one and stock tools can read the files). */
#ifndef PS_BYTES_H
#define PS_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void ps_put_le32(uint8_t *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, sizeof v);
}
static inline void ps_put_le64(uint8_t *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, sizeof v);
}
static inline void ps_put_be32(uint8_t *p, uint32_t v)
{
    v = htobe32(v);
    memcpy(p, &v, sizeof v);
}
static inline void ps_put_be64(uint8_t *p, uint64_t v)
{
    v = htobe64(v);
    memcpy(p, &v, sizeof v);
}
static inline uint32_t ps_get_le32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return le32toh(v);
}
static inline uint64_t ps_get_le64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return le64toh(v);
}
static inline uint32_t ps_get_be32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return be32toh(v);
}
static inline uint64_t ps_get_be64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return be64toh(v);
}
static inline void ps_put_f64(uint8_t *p, double d)
{
    uint64_t v;
    memcpy(&v, &d, sizeof v);
    ps_put_le64(p, v);
}
static inline double ps_get_f64(const uint8_t *p)
{
    uint64_t v = ps_get_le64(p);
    double d;
    memcpy(&d, &v, sizeof d);
    return d;
}

#endif
