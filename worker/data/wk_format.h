/* worker/data/wk_format.h - what a data format is: from one line to one row.
 *
 * Layer:     worker/data. A format is one file wk_read_<name>.c that defines a wk_format, its line
 * in wk_data.c's list, and its test. Threads:   a reader belongs to one thread. Ownership: open
 * allocates the reader (a struct that begins with wk_reader); close frees it.
 */
#ifndef WK_FORMAT_H
#define WK_FORMAT_H

#include "worker/data/wk_data.h"
#include "worker/data/wk_parse.h"

#define WK_MAX_COLUMNS 4096

/* What a line says. Arrays belong to the loader. */
typedef struct wk_row {
    float label;
    float *dense;     /* [n_dense] */
    uint64_t *single; /* [n_fields] id of each one-hot field, by field index; others unused */
    uint64_t *multi;  /* ids of the multi-valued fields, one after the other, by field index */
    size_t n_multi, cap_multi;
    uint32_t *n_in_bag;  /* [n_fields] */
    uint64_t split_hash; /* FNV-1a-64 of what data.split hash looks at */
} wk_row;

typedef struct wk_format wk_format;
typedef struct wk_reader {
    const wk_format *format;
    wk_shape shape;
} wk_reader;

struct wk_format {
    const char *name;
    /* Checks the job's data.* and says the shape. BD_E_USAGE; side files: BD_E_DATA, BD_E_IO. */
    bd_status (*open)(const wk_job *job, wk_reader **out, bd_err *err);
    /* BD_E_DATA by wk_line_bad: the line is skipped or ends the load. */
    bd_status (*parse)(wk_reader *r, const wk_line *line, wk_row *row, bd_err *err);
    void (*close)(wk_reader *r);
};

extern const wk_format wk_format_csv;
extern const wk_format wk_format_criteo;
extern const wk_format wk_format_ratings;

/* Room for one more id in row->multi. */
bd_status wk_row_push_id(wk_row *row, uint64_t id) BD_MUST_CHECK;
/* Allocates names and flags for n_fields fields; the names are the format's to set. */
bd_status wk_shape_init(wk_shape *s, size_t n_dense, size_t n_fields) BD_MUST_CHECK;
void wk_shape_deinit(wk_shape *s); /* frees names too */

#endif
