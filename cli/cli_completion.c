/* `braid completion bash|zsh|fish`: scripts for shells, made of the commands' tables. */
#include "base/exit_code.h"

#include "cli/cli_cmd.h"

#include <string.h>

/* ---- the tables, as shells want them ---- */
typedef void (*row_fn)(const cli_cmd *cmd, const bd_opt *row, FILE *out);

/* Each option of a command and of its own commands, once. */
static void each_option(const cli_cmd *cmd, row_fn fn, FILE *out)
{
    const bd_opt *seen[256];
    size_t n_seen = 0;
    for (size_t t = 0;; t++) {
        const cli_cmd *from = t == 0 ? cmd : cmd->subs == NULL ? NULL : cmd->subs[t - 1];
        if (from == NULL) {
            return;
        }
        const bd_opt *table = from->options;
        for (size_t i = 0; i < from->n_options; i++) {
            bool known = false;
            for (size_t k = 0; k < n_seen; k++) {
                known = known || strcmp(seen[k]->key, table[i].key) == 0;
            }
            if (!known && n_seen < sizeof seen / sizeof seen[0]) {
                seen[n_seen++] = &table[i];
                fn(cmd, &table[i], out);
            }
        }
    }
}

static void put_flag(const bd_opt *row, FILE *out)
{
    for (const char *c = row->key; *c != '\0'; c++) {
        (void)fputc(*c == '_' ? '-' : *c, out);
    }
}

/* "a|b|c" with other separators. */
static void put_choices(const char *choices, char separator, FILE *out)
{
    for (const char *c = choices; *c != '\0'; c++) {
        (void)fputc(*c == '|' ? separator : *c, out);
    }
}

/* A command's first words: its verbs, and its own commands. */
static bool has_verbs(const cli_cmd *cmd)
{
    return cmd->verbs != NULL || cmd->subs != NULL;
}

static void put_verbs(const cli_cmd *cmd, FILE *out)
{
    if (cmd->verbs != NULL) {
        put_choices(cmd->verbs, ' ', out);
    }
    for (size_t i = 0; cmd->subs != NULL && cmd->subs[i] != NULL; i++) {
        (void)fputs(i > 0 || cmd->verbs != NULL ? " " : "", out);
        put_choices(cmd->subs[i]->name, ' ', out);
    }
}

/* The names of all commands, for `braid help`. */
static void put_commands(FILE *out)
{
    for (size_t i = 0; cli_cmd_at(i) != NULL; i++) {
        (void)fprintf(out, "%s%s", i > 0 ? " " : "", cli_cmd_at(i)->name);
    }
}

/* ---- bash ---- */
static void bash_flag(const cli_cmd *cmd, const bd_opt *row, FILE *out)
{
    (void)cmd;
    (void)fputs(" --", out);
    put_flag(row, out);
}

static void bash_value(const cli_cmd *cmd, const bd_opt *row, FILE *out)
{
    (void)cmd;
    if (row->type == BD_OPT_BOOL) {
        return;
    }
    (void)fputs("    --", out);
    put_flag(row, out);
    (void)fputs(strcmp(row->key, "format") == 0 ? " | -o)" : ")", out);
    if (row->type == BD_OPT_ENUM) {
        (void)fputs(" words=\"", out);
        put_choices(row->choices, ' ', out);
        (void)fputs("\" ;;\n", out);
    } else {
        (void)fputs(row->type == BD_OPT_STR || row->type == BD_OPT_LIST ? " files=1 ;;\n"
                                                                        : " return ;;\n",
                    out);
    }
}

static void bash_script(FILE *out)
{
    (void)fputs("# bash completion of braid, made by `braid completion bash`\n"
                "_braid() {\n"
                "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
                "  local flags='' words='' files=''\n"
                "  COMPREPLY=()\n"
                "  if [ \"$cur\" = = ]; then # bash splits --flag=value\n"
                "    cur=''\n"
                "  elif [ \"$prev\" = = ]; then\n"
                "    prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
                "  fi\n"
                "  if [ \"$COMP_CWORD\" = 1 ]; then\n"
                "    mapfile -t COMPREPLY < <(compgen -W \"",
                out);
    put_commands(out);
    (void)fputs(" --help --version\" -- \"$cur\")\n"
                "    return\n"
                "  fi\n"
                "  case ${COMP_WORDS[1]} in\n",
                out);
    for (size_t i = 0; cli_cmd_at(i) != NULL; i++) {
        const cli_cmd *cmd = cli_cmd_at(i);
        (void)fprintf(out, "  %s)\n    flags=\"--help", cmd->name);
        each_option(cmd, bash_flag, out);
        (void)fputs("\"\n    case $prev in\n", out);
        each_option(cmd, bash_value, out);
        (void)fputs("    *)\n", out);
        if (has_verbs(cmd)) {
            (void)fputs("      [ \"$COMP_CWORD\" = 2 ] && words=\"", out);
            put_verbs(cmd, out);
            (void)fputs("\"\n", out);
        } else if (strcmp(cmd->name, "help") == 0) {
            (void)fputs("      words=\"", out);
            put_commands(out);
            (void)fputs("\"\n", out);
        }
        (void)fputs(cmd->words != NULL ? "      files=1\n      ;;\n" : "      ;;\n", out);
        (void)fputs("    esac\n    ;;\n", out);
    }
    (void)fputs("  esac\n"
                "  case $cur in\n"
                "  -*) mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$cur\") ;;\n"
                "  *)\n"
                "    if [ -n \"$words\" ]; then\n"
                "      mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
                "    elif [ -n \"$files\" ]; then\n"
                "      mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
                "    fi\n"
                "    ;;\n"
                "  esac\n"
                "}\n"
                "complete -o filenames -F _braid braid\n",
                out);
}

/* ---- zsh ---- */
/* Help between [ and ] inside single quotes: its first sentence. */
static void zsh_text(const char *s, FILE *out)
{
    for (; *s != '\0' && strncmp(s, ". ", 2) != 0; s++) {
        if (*s == '\'') {
            (void)fputs("'\\''", out);
        } else if (strchr("[]:\\", *s) != NULL) {
            (void)fprintf(out, "\\%c", *s);
        } else {
            (void)fputc(*s, out);
        }
    }
}

static void zsh_row(const cli_cmd *cmd, const bd_opt *row, FILE *out)
{
    (void)cmd;
    (void)fputs("      '--", out);
    put_flag(row, out);
    (void)fputs("[", out);
    zsh_text(row->help, out);
    (void)fputs("]", out);
    if (row->type == BD_OPT_ENUM) {
        (void)fputs(":value:(", out);
        put_choices(row->choices, ' ', out);
        (void)fputs(")", out);
    } else if (row->type == BD_OPT_STR || row->type == BD_OPT_LIST) {
        (void)fputs(":value:_files", out);
    } else if (row->type != BD_OPT_BOOL) {
        (void)fputs(":value:", out);
    }
    (void)fputs("' \\\n", out);
}

static void zsh_script(FILE *out)
{
    (void)fputs("#compdef braid\n"
                "# made by `braid completion zsh`\n"
                "_braid() {\n"
                "  local -a commands\n"
                "  commands=(\n",
                out);
    for (size_t i = 0; cli_cmd_at(i) != NULL; i++) {
        (void)fprintf(out, "    '%s:", cli_cmd_at(i)->name);
        zsh_text(cli_cmd_at(i)->help, out);
        (void)fputs("'\n", out);
    }
    (void)fputs("  )\n"
                "  if ((CURRENT == 2)); then\n"
                "    _describe -t commands command commands\n"
                "    return\n"
                "  fi\n"
                "  local command=$words[2]\n"
                "  shift words\n"
                "  ((CURRENT--))\n"
                "  case $command in\n",
                out);
    for (size_t i = 0; cli_cmd_at(i) != NULL; i++) {
        const cli_cmd *cmd = cli_cmd_at(i);
        (void)fprintf(out, "    %s)\n      _arguments -s \\\n", cmd->name);
        each_option(cmd, zsh_row, out);
        if (has_verbs(cmd)) {
            (void)fputs("      '1:verb:(", out);
            put_verbs(cmd, out);
            (void)fputs(")' \\\n", out);
        }
        (void)fputs("      '*:file:_files'\n      ;;\n", out);
    }
    (void)fputs("  esac\n}\n_braid \"$@\"\n", out);
}

/* ---- fish ---- */
static void fish_text(const char *s, FILE *out)
{
    (void)fputc('\'', out);
    for (; *s != '\0' && strncmp(s, ". ", 2) != 0; s++) {
        if (*s == '\'' || *s == '\\') {
            (void)fputc('\\', out);
        }
        (void)fputc(*s, out);
    }
    (void)fputc('\'', out);
}

static void fish_row(const cli_cmd *cmd, const bd_opt *row, FILE *out)
{
    (void)fprintf(out, "complete -c braid -n '__fish_seen_subcommand_from %s' -l ", cmd->name);
    put_flag(row, out);
    if (row->type == BD_OPT_ENUM) {
        (void)fputs(" -x -a '", out);
        put_choices(row->choices, ' ', out);
        (void)fputs("'", out);
    } else if (row->type != BD_OPT_BOOL) {
        (void)fputs(row->type == BD_OPT_STR || row->type == BD_OPT_LIST ? " -r -F" : " -x", out);
    }
    (void)fputs(" -d ", out);
    fish_text(row->help, out);
    (void)fputs("\n", out);
}

static void fish_script(FILE *out)
{
    (void)fputs("# fish completion of braid, made by `braid completion fish`\n"
                "complete -c braid -n __fish_use_subcommand -f\n",
                out);
    for (size_t i = 0; cli_cmd_at(i) != NULL; i++) {
        const cli_cmd *cmd = cli_cmd_at(i);
        (void)fprintf(out, "complete -c braid -n __fish_use_subcommand -f -a %s -d ", cmd->name);
        fish_text(cmd->help, out);
        (void)fputs("\n", out);
        if (has_verbs(cmd)) {
            (void)fprintf(out, "complete -c braid -n '__fish_seen_subcommand_from %s' -f -a '",
                          cmd->name);
            put_verbs(cmd, out);
            (void)fputs("'\n", out);
        }
        each_option(cmd, fish_row, out);
    }
}

static bd_status run(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err)
{
    static const struct {
        const char *name;
        void (*fn)(FILE *out);
    } shells[] = {{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};
    *exit_code = BD_EXIT_OK;
    for (size_t i = 0; argc == 2 && i < sizeof shells / sizeof shells[0]; i++) {
        if (strcmp(argv[1], shells[i].name) == 0) {
            shells[i].fn(io->out);
            return BD_OK;
        }
    }
    return bd_err_set(err, BD_E_USAGE, "completion: bash, zsh or fish");
}

const cli_cmd cli_cmd_completion = {
    .name = "completion",
    .usage = "bash|zsh|fish",
    .help = "Prints what makes a shell complete braid's words: source <(braid completion bash).",
    .verbs = "bash|zsh|fish",
    .run = run};
