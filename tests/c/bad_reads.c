/* What the calls that look inside refuse; they leave the outputs, the parameters and the state as they were.
 */
#include "model.h"

enum { ROOM = 64 };

static void statistics(model *m) {
    foam_factor_info items[ROOM];
    size_t count = 77, factors = 0;
    REFUSED(m, FOAM_INVALID_ARGUMENT, "NULL", foam_stats(m->optimizer, NULL, &m->error));
    foam_stats_info stats;
    stats.struct_size = sizeof stats;
    REFUSED(m, FOAM_INVALID_ARGUMENT, "NULL", foam_stats(NULL, &stats, &m->error));
    OK(&m->error, foam_factor_stats(m->optimizer, NULL, 0, 0, &factors, &m->error));
    REQUIRE(factors > 1 && factors < ROOM);
    REFUSED(m, FOAM_INVALID_ARGUMENT, "NULL",
            foam_factor_stats(NULL, items, sizeof items[0], ROOM, &count, &m->error));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "items|NULL",
            foam_factor_stats(m->optimizer, NULL, sizeof items[0], ROOM, &count, &m->error));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "count|NULL",
            foam_factor_stats(m->optimizer, items, sizeof items[0], ROOM, NULL, &m->error));
    CHECK(count == 77);
    memset(items, 0x5a, sizeof items);
    REFUSED(m, FOAM_INVALID_ARGUMENT, "capacity",
            foam_factor_stats(m->optimizer, items, sizeof items[0], factors - 1, &count, &m->error));
    CHECK(items[0].struct_size == 0x5a5a5a5a);
}

static void diagnoses(model *m) {
    foam_factor_info items[ROOM];
    foam_config config;
    char text[512];
    size_t count = 0, needed = 77;
    uint64_t findings = 77;
    REFUSED(m, FOAM_INVALID_ARGUMENT, "NULL", foam_diagnosis(NULL, text, sizeof text, &needed, &m->error));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "text|NULL|capacity = 9",
            foam_diagnosis(m->optimizer, NULL, 9, &needed, &m->error));
    CHECK(needed == 77);
    OK(&m->error, foam_diagnosis(m->optimizer, text, sizeof text, &needed, &m->error));
    CHECK(needed == 1 && text[0] == 0);

    OK(&m->error, foam_factor_stats(m->optimizer, items, sizeof items[0], ROOM, &count, &m->error));
    OK(&m->error, foam_config_init(&config, sizeof config, NULL, &m->error));
#define DIAGNOSE(config, items, size, count, text, capacity)                                                 \
    foam_diagnose(config, items, size, count, &findings, text, capacity, &needed, &m->error)
    REFUSED(m, FOAM_INVALID_ARGUMENT, "config|NULL", DIAGNOSE(NULL, items, sizeof items[0], count, NULL, 0));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "foam_factor_info|NULL",
            DIAGNOSE(&config, NULL, sizeof items[0], count, NULL, 0));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "item_size = 3", DIAGNOSE(&config, items, 3, count, NULL, 0));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "text|NULL", DIAGNOSE(&config, items, sizeof items[0], count, NULL, 8));
    CHECK(findings == 77);
    OK(&m->error, DIAGNOSE(&config, NULL, 0, 0, NULL, 0));
    CHECK(findings == 0 && needed == 1);
    for (size_t i = 0; i < count; i++) {
        items[i].checks = items[i].evd_calls = 20, items[i].proxy_calls = 18, items[i].noise_floor = 0;
    }
    OK(&m->error, DIAGNOSE(&config, items, sizeof items[0], count, text, sizeof text));
    CHECK(findings == 0 && text[0] == 0); /* one refresh was not asked for by the policy */
    for (size_t i = 0; i < count; i++) items[i].proxy_calls = 19;
    OK(&m->error, DIAGNOSE(&config, items, sizeof items[0], count, text, sizeof text));
    CHECK(findings & FOAM_FINDING_ALWAYS_REFRESHES && items[0].findings & FOAM_FINDING_ALWAYS_REFRESHES);
    CHECK(needed == strlen(text) + 1 && strstr(text, "always_refreshes: ") && strstr(text, "try tau = 1"));
    /* A caller with a shorter struct gets no findings of its factors, but those of all. */
    findings = 77, items[0].findings = 77;
    OK(&m->error, DIAGNOSE(&config, items, offsetof(foam_factor_info, findings), 1, text, 5));
    CHECK(findings & FOAM_FINDING_ALWAYS_REFRESHES && items[0].findings == 77 && strcmp(text, "alwa") == 0);
}

#define READ(m, status, says, param, block, axis, what, values, capacity, count)                             \
    REFUSED(                                                                                                 \
        m, status, says,                                                                                     \
        foam_factor_read((m)->optimizer, param, block, axis, what, values, capacity, count, &(m)->error))

static void factors(model *m) {
    enum { S = FOAM_FACTOR_STATISTIC };
    double values[ROOM];
    size_t count = 77;
    memset(values, 0x5a, sizeof values);
    READ(m, FOAM_INVALID_ARGUMENT, "param_index|-1", -1, 0, 0, S, values, ROOM, &count);
    READ(m, FOAM_INVALID_ARGUMENT, "param_index|5", MODEL_PARAMS, 0, 0, S, values, ROOM, &count);
    READ(m, FOAM_INVALID_ARGUMENT, "param_index", INT64_MAX, 0, 0, S, values, ROOM, &count);
    READ(m, FOAM_INVALID_ARGUMENT, "tall|block|2", TALL, 2, 0, S, values, ROOM, &count);
    READ(m, FOAM_INVALID_ARGUMENT, "tall|block|-1", TALL, -1, 0, S, values, ROOM, &count);
    READ(m, FOAM_INVALID_ARGUMENT, "tall|block", TALL, INT64_MIN, 0, S, values, ROOM, &count);
    READ(m, FOAM_INVALID_ARGUMENT, "tall|axis|2", TALL, 1, 2, S, values, ROOM, &count);
    READ(m, FOAM_INVALID_ARGUMENT, "vector|axis|1", VECTOR, 0, 1, S, values, ROOM, &count);
    READ(m, FOAM_INVALID_ARGUMENT, "vector|axis|-1", VECTOR, 0, -1, S, values, ROOM, &count);
    READ(m, FOAM_INVALID_ARGUMENT, "what|4", MATRIX, 0, 0, 4, values, ROOM, &count);
    READ(m, FOAM_INVALID_ARGUMENT, "what|-1", MATRIX, 0, 0, -1, values, ROOM, &count);
    READ(m, FOAM_INVALID_ARGUMENT, "capacity|36", MATRIX, 0, 0, S, values, 35, &count);
    READ(m, FOAM_INVALID_ARGUMENT, "capacity|6", MATRIX, 0, 0, FOAM_FACTOR_SPECTRUM, values, 0, &count);
    READ(m, FOAM_INVALID_ARGUMENT, "count|NULL", MATRIX, 0, 0, S, values, ROOM, NULL);
    CHECK(count == 77);
    CHECK(((unsigned char *)values)[0] == 0x5a);
    REFUSED(m, FOAM_INVALID_ARGUMENT, "NULL",
            foam_factor_read(NULL, MATRIX, 0, 0, S, values, ROOM, &count, &m->error));
    /* One value more than there are stays untouched. */
    OK(&m->error, foam_factor_read(m->optimizer, MATRIX, 0, 1, S, values, ROOM, &count, &m->error));
    CHECK(count == 16 && ((unsigned char *)&values[16])[0] == 0x5a);
}

static void gaps(model *m) {
    double gap = 77.0;
    REFUSED(m, FOAM_INVALID_ARGUMENT, "gap|NULL",
            foam_exact_gap(m->optimizer, MATRIX, 0, 0, NULL, &m->error));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "NULL", foam_exact_gap(NULL, MATRIX, 0, 0, &gap, &m->error));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "param_index|9",
            foam_exact_gap(m->optimizer, 9, 0, 0, &gap, &m->error));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "matrix|block|1",
            foam_exact_gap(m->optimizer, MATRIX, 1, 0, &gap, &m->error));
    REFUSED(m, FOAM_INVALID_ARGUMENT, "matrix|axis|2",
            foam_exact_gap(m->optimizer, MATRIX, 0, 2, &gap, &m->error));
    CHECK(gap == 77.0);
    REFUSED(m, FOAM_INVALID_ARGUMENT, "NULL", foam_synchronize(NULL, &m->error));
}

/* Before the first check there is no basis: reading one either fails or gives numbers, never rubbish. */
static void before_the_first_check(void) {
    model m;
    double values[ROOM], gap = 77.0;
    size_t count = 0;
    model_start(&m, 0);
    for (int32_t what = FOAM_FACTOR_STATISTIC; what <= FOAM_FACTOR_INVERSE_ROOT; what++) {
        foam_status status =
            foam_factor_read(m.optimizer, MATRIX, 0, 0, what, values, ROOM, &count, &m.error);
        CHECK(status == FOAM_OK || status == FOAM_INVALID_ARGUMENT);
        for (size_t i = 0; status == FOAM_OK && i < count; i++) CHECK(isfinite(values[i]));
    }
    foam_status status = foam_exact_gap(m.optimizer, MATRIX, 0, 0, &gap, &m.error);
    CHECK((status == FOAM_OK && (gap >= 0.0 || isnan(gap))) || (status != FOAM_OK && gap == 77.0));
    CHECK(model_unchanged(&m));
    model_close(&m);
}

static void names_of_statuses(void) {
    CHECK(strcmp(foam_status_name(FOAM_OK), "FOAM_OK") == 0);
    CHECK(strcmp(foam_status_name(FOAM_PANIC), "FOAM_PANIC") == 0);
    CHECK(strcmp(foam_status_name(FOAM_PANIC + 1), "FOAM_UNKNOWN") == 0);
    CHECK(strcmp(foam_status_name(-1), "FOAM_UNKNOWN") == 0);
    CHECK(strcmp(foam_status_name(INT32_MIN), "FOAM_UNKNOWN") == 0);
}

int main(void) {
    model m;
    model_start(&m, 7);
    statistics(&m);
    diagnoses(&m);
    factors(&m);
    gaps(&m);
    model_close(&m);
    before_the_first_check();
    names_of_statuses();
    return check_result("bad_reads");
}
