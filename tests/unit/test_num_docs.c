/* docs/OPTIMIZERS.md is what the tables say. `test_num_docs --print` writes the page (make docs).
 */
#include "base/num/init.h"
#include "base/num/optim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A cell of a table: a bar inside it would end it. */
static void print_text(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        (void)fprintf(out, *text == '|' ? "\\%c" : "%c", *text);
    }
}

static void print_hyper(FILE *out, const num_hyper *h)
{
    (void)fprintf(out, "| `%s` | %g | %g .. %g | ", h->name, h->def, h->min, h->max);
    print_text(out, h->help);
    (void)fputs(" |\n", out);
}

/* "2 * dim + 1" from the sizes themselves. */
static void print_state(FILE *out, const num_optim *opt)
{
    size_t fixed = opt->state_elems(0), per_dim = opt->state_elems(1) - fixed;
    if (per_dim > 1) {
        (void)fprintf(out, "%zu ", per_dim);
    }
    if (per_dim > 0) {
        (void)fprintf(out, "dim%s", fixed > 0 ? " + " : "");
    }
    if (per_dim == 0 || fixed > 0) {
        (void)fprintf(out, "%zu", fixed);
    }
}

/* Hyperparameters of opt, or, for NULL, those that all optimisers take. */
static void print_hypers(FILE *out, const num_optim *opt)
{
    const num_optim *any = opt != NULL ? opt : num_optim_at(0);
    const num_hyper *h = NULL;
    size_t place = 0;
    (void)fputs("\n| Name | Default | Bounds | What it is |\n|---|---|---|---|\n", out);
    for (size_t i = opt != NULL ? 0 : any->n_hypers;
         (h = num_optim_hyper_at(any, i, &place)) != NULL; i++) {
        if (opt == NULL || i < opt->n_hypers) {
            print_hyper(out, h);
        }
    }
}

static void print_page(FILE *out)
{
    (void)fputs(
        "# Optimisers and initialisers\n\n"
        "Made from the tables in `base/num/` by `make docs`; do not edit.\n\n"
        "They update rows next to the rows (`embedding.optimizer`, `bias.optimizer`; a table's\n"
        "`optimizer` in the API) and dense parameters (`train.optimizer`), each parameter as one\n"
        "row. `g` is a row's gradient, `w` its weights; state is kept in f32 beside them. All are\n"
        "lazy: a row that a step does not touch does not change, and counts no step.\n"
        "Hyperparameters are given as text, for example `embedding.hyper: \"eps=1e-6, "
        "clip_norm=1\"`.\n\n"
        "| Name | State elements | Formula |\n|---|---|---|\n",
        out);
    for (size_t i = 0; num_optim_at(i) != NULL; i++) {
        const num_optim *opt = num_optim_at(i);
        (void)fprintf(out, "| [`%s`](#%s) | ", opt->name, opt->name);
        print_state(out, opt);
        (void)fputs(" | `", out);
        print_text(out, opt->help);
        (void)fputs("` |\n", out);
    }
    (void)fputs(
        "\n## For every optimiser\n\n"
        "Applied by `num_optim_apply` around the step, in this order: gradients are cut to\n"
        "`clip_value`, then scaled to `clip_norm`; weights decay; the step; weights are\n"
        "scaled to `max_norm`. An optimiser whose weights are a function of its state\n"
        "(ftrl) refuses those that change weights.\n",
        out);
    print_hypers(out, NULL);
    for (size_t i = 0; num_optim_at(i) != NULL; i++) {
        (void)fprintf(out, "\n## %s\n", num_optim_at(i)->name);
        print_hypers(out, num_optim_at(i));
    }
}

static void print_inits(FILE *out)
{
    (void)fputs("\n# Initialisers\n\n"
                "What a row of a table starts with (`initializer` in the API): a pure function of\n"
                "(seed, table name, key, element), the same on every server and in every run.\n",
                out);
    for (size_t i = 0; num_init_at(i) != NULL; i++) {
        const num_init *in = num_init_at(i);
        (void)fprintf(out, "\n## %s\n\n%s.\n", in->name, in->help);
        (void)fputs("\n| Name | Default | Bounds | What it is |\n|---|---|---|---|\n", out);
        for (size_t k = 0; k < in->n_params; k++) {
            print_hyper(out, &in->params[k]);
        }
    }
}

static void the_page_is_fresh(void **state)
{
    (void)state;
    char *want = NULL;
    size_t n_want = 0;
    FILE *page = open_memstream(&want, &n_want);
    assert_non_null(page);
    print_page(page);
    print_inits(page);
    assert_int_equal(fclose(page), 0);
    FILE *file = fopen("docs/OPTIMIZERS.md", "r");
    assert_non_null(file);
    char *have = calloc(n_want + 2, 1);
    size_t n_have = fread(have, 1, n_want + 1, file);
    assert_int_equal(fclose(file), 0);
    if (n_have != n_want || memcmp(have, want, n_want) != 0) {
        fail_msg("docs/OPTIMIZERS.md is old: make docs");
    }
    free(have);
    free(want);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--print") == 0) {
        print_page(stdout);
        print_inits(stdout);
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_page_is_fresh)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
