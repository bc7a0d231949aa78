/* cli/cli_cmd_table.h - the verbs of `braid table` on running servers.
 *
 * Layer: cli. Threads: the main thread; blocks until the servers have answered.
 */
#ifndef CLI_CMD_TABLE_H
#define CLI_CMD_TABLE_H

#include "base/json.h"

#include "cli/cli_admin.h"
#include "cli/cli_cmd.h"
#include "rpc/rpc_security_opt.h"

#include "braid/v1/parameter_server.pb-c.h"

typedef struct table_flags {
    const char *coordinator, *run_dir, *format, *ps_bin;
    bd_str_list data_dir;
    const char *output, *input;
    bool with_state;
    int64_t timeout_ms, top;
    rpc_security_options security;
} table_flags;

typedef struct table_call {
    const table_flags *flags;
    const char *coordinator;
    cli_admin admin;
    int n_words; /* after the verb */
    char *const *words;
    bool json;
    FILE *out;
} table_call;

/* Server 0's answer about its tables, and the rows on all of them. */
typedef struct table_list {
    Braid__V1__ListTablesReply **replies; /* owned [n_servers] */
    size_t n_servers;
} table_list;

bd_status cli_table_list_get(table_call *c, table_list *l, bd_err *err) BD_MUST_CHECK;
void cli_table_list_free(table_list *l);
/* BD_E_NOT_FOUND, with the nearest right name. */
bd_status cli_table_find(const table_list *l, const char *name, const Braid__V1__TableInfo **out,
                         bd_err *err) BD_MUST_CHECK;
uint64_t cli_table_rows(const table_list *l, uint32_t table_id);
bd_status cli_table_print_json(FILE *out, bd_json *j, bd_err *err) BD_MUST_CHECK;
bd_status cli_table_parse_key(const char *text, uint64_t *key, bd_err *err) BD_MUST_CHECK;

/* ---- cli_table_rows.c ---- */
bd_status cli_table_get(table_call *c, const table_list *l, bd_err *err) BD_MUST_CHECK;
bd_status cli_table_set(table_call *c, const table_list *l, bd_err *err) BD_MUST_CHECK;
bd_status cli_table_export(table_call *c, const table_list *l, bd_err *err) BD_MUST_CHECK;
bd_status cli_table_import(table_call *c, const table_list *l, bd_err *err) BD_MUST_CHECK;

/* ---- cli_table_hot.c ---- */
bd_status cli_table_hot(table_call *c, const table_list *l, bd_err *err) BD_MUST_CHECK;

#endif
