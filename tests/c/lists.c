/* The lists of blocks, ports and record fields say what the library does. */
#include "model.h"

enum { ROOM = 64 };

static void blocks(void) {
    model m;
    foam_block_info planned[ROOM], live[ROOM];
    foam_factor_info factors[ROOM];
    size_t count = 0, again = 0, factor_count = 0;
    model_start(&m, 4);
    OK(&m.error, foam_plan_blocks(&m.config, m.described, MODEL_PARAMS, NULL, 0, 0, &count, &m.error));
    REQUIRE(count == 6);
    memset(planned, 0x5a, sizeof planned);
    OK(&m.error, foam_plan_blocks(&m.config, m.described, MODEL_PARAMS, planned, sizeof planned[0], ROOM, &count,
                                  &m.error));
    OK(&m.error, foam_blocks(m.optimizer, live, sizeof live[0], ROOM, &again, &m.error));
    CHECK(again == count && memcmp(planned, live, count * sizeof live[0]) == 0);
    CHECK(planned[count].struct_size == 0x5a5a5a5a);
    /* tall, 12 x 3 with sides of at most 8, is cut into 8 x 3 and 4 x 3. */
    const foam_block_info *upper = &live[3], *lower = &live[4];
    CHECK(upper->param_index == TALL && upper->block == 0 && upper->offset == 0 && upper->elements == 24);
    CHECK(upper->ndim == 2 && upper->shape[0] == 8 && upper->shape[1] == 3 && upper->strides[0] == 3);
    CHECK(lower->param_index == TALL && lower->block == 1 && lower->offset == 24 && lower->shape[0] == 4);
    CHECK(upper->step_cost == 2 * 24 * 11 && upper->check_cost == 3 * (512 + 27));
    CHECK(upper->refresh_cost == 10 * (512 + 27) && upper->factors == 2 && upper->shape[2] == 0);
    /* Every factor belongs to a listed block, and the state adds up. */
    foam_stats_info info;
    info.struct_size = sizeof info;
    OK(&m.error, foam_stats(m.optimizer, &info, &m.error));
    OK(&m.error, foam_factor_stats(m.optimizer, factors, sizeof factors[0], ROOM, &factor_count, &m.error));
    size_t at = 0;
    uint64_t bytes = 0;
    for (size_t b = 0; b < count; b++) {
        for (int64_t axis = 0; axis < live[b].factors; axis++, at++) {
            CHECK(factors[at].param_index == live[b].param_index && factors[at].block == live[b].block);
            CHECK(factors[at].axis == axis && factors[at].dim == live[b].shape[axis]);
        }
        bytes += live[b].state_bytes;
    }
    CHECK(at == factor_count && bytes <= info.state_bytes_host && bytes > info.state_bytes_host / 8);
    /* Equal blocks have the same stack: two of 6 x 4 in f32, one in f64, one of another shape. */
    foam_param four[4];
    int64_t shapes[4][2] = {{6, 4}, {6, 4}, {6, 4}, {4, 6}};
    static const char *const names[] = {"a", "b", "c", "d"};
    for (int p = 0; p < 4; p++) {
        four[p] = m.described[MATRIX];
        four[p].name = names[p];
        four[p].shape = shapes[p];
    }
    four[2].dtype.bits = 64;
    OK(&m.error, foam_plan_blocks(&m.config, four, 4, planned, sizeof planned[0], ROOM, &count, &m.error));
    CHECK(count == 4 && planned[0].stack == 0 && planned[1].stack == 0);
    CHECK(planned[2].stack == 1 && planned[3].stack == 2);
    /* Merging: 6 x 4 becomes one vector of 24. */
    m.config.merge_dims = 1;
    m.config.max_factor_dim = 1024;
    four[1].flags = FOAM_PARAM_GRAFTING_ONLY;
    OK(&m.error, foam_plan_blocks(&m.config, four, 4, planned, sizeof planned[0], ROOM, &count, &m.error));
    CHECK(count == 4 && planned[0].ndim == 1 && planned[0].shape[0] == 24 && planned[0].strides[0] == 1);
    CHECK(planned[1].factors == 0 && planned[1].refresh_cost == 0 && planned[1].stack != planned[0].stack);
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "items has room for 3|4",
          foam_plan_blocks(&m.config, four, 4, planned, sizeof planned[0], 3, &count, &m.error));
    CHECK(count == 4);
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "item_size = 8|foam_block_info",
          foam_plan_blocks(&m.config, four, 4, planned, 8, ROOM, &count, &m.error));
    four[1].name = "a";
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "both named 'a'",
          foam_plan_blocks(&m.config, four, 4, planned, sizeof planned[0], ROOM, &count, &m.error));
    m.config.tau = -1;
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "tau",
          foam_plan_blocks(&m.config, four, 4, planned, sizeof planned[0], ROOM, &count, &m.error));
    FAILS(&m.error, FOAM_INVALID_ARGUMENT, "optimizer is NULL",
          foam_blocks(NULL, planned, sizeof planned[0], ROOM, &count, &m.error));
    model_close(&m);
}

/* The ports of a verb in one line: operands, then results. */
static void spell(const foam_stack_port *ports, size_t count, char *text) {
    int results = 0;
    *text = 0;
    for (size_t at = 0; at < count; at++) {
        if (!results && ports[at].flags == FOAM_PORT_WRITTEN) strcat(text, "-> "), results = 1;
        CHECK(ports[at].flags == (results ? FOAM_PORT_WRITTEN : FOAM_PORT_READ));
        strcat(strcat(text, ports[at].name), " ");
    }
}

static void ports(void) {
    foam_error error = FOAM_ERROR_INIT;
    foam_config config;
    foam_stack stack;
    foam_stack_buffer layout[ROOM];
    foam_stack_port list[ROOM];
    const int64_t shape[2] = {4, 3};
    size_t count = 0, buffers = 0;
    char text[1024];
    OK(&error, foam_config_init(&config, sizeof config, "reference", &error));
    OK(&error, foam_stack_init(&stack, sizeof stack, &error));
    stack.shape = shape;
    stack.ndim = 2;
    stack.count = 5;
    stack.dtype.code = FOAM_DTYPE_BFLOAT;
    stack.dtype.bits = 16;
    OK(&error, foam_stack_layout(&config, &stack, layout, sizeof layout[0], ROOM, &buffers, &error));
    OK(&error, foam_stack_ports(&config, &stack, FOAM_VERB_ACCUMULATE, -1, list, sizeof list[0], ROOM, &count, &error));
    spell(list, count, text);
    CHECK(strcmp(text, "grads active clock statistic_0 statistic_1 -> clock statistic_0 statistic_1 info workspace ") == 0);
    CHECK(list[0].dtype_count == 4 && list[0].dtypes[0].code == FOAM_DTYPE_BFLOAT && list[0].ndim == 3);
    CHECK(list[0].shape[0] == 5 && list[0].shape[1] == 4 && list[0].shape[2] == 3 && list[0].state == -1);
    OK(&error, foam_stack_ports(&config, &stack, FOAM_VERB_CHECK, -1, list, sizeof list[0], ROOM, &count, &error));
    spell(list, count, text);
    CHECK(strcmp(text, "info clock record statistic_0 statistic_1 basis_0 basis_1 spectrum_0 spectrum_1 inverse_root_0 "
                       "inverse_root_1 -> record basis_0 basis_1 spectrum_0 spectrum_1 inverse_root_0 inverse_root_1 "
                       "info workspace ") == 0);
    /* State ports are the layout's buffers. */
    for (size_t at = 0; at < count; at++) {
        if (list[at].state < 0) continue;
        const foam_stack_buffer *buffer = &layout[list[at].state];
        CHECK(strcmp(buffer->name, list[at].name) == 0 && buffer->ndim == list[at].ndim);
        CHECK(memcmp(buffer->shape, list[at].shape, sizeof buffer->shape) == 0);
        CHECK(memcmp(&buffer->dtype, &list[at].dtypes[0], sizeof buffer->dtype) == 0 && list[at].dtype_count == 1);
    }
    OK(&error, foam_stack_ports(&config, &stack, FOAM_VERB_APPLY, -1, list, sizeof list[0], ROOM, &count, &error));
    spell(list, count, text);
    CHECK(strcmp(text, "grads params info clock inverse_root_0 inverse_root_1 filter moment -> update filter moment info "
                       "workspace ") == 0);
    config.weight_decay = 0.0;
    OK(&error, foam_stack_ports(&config, &stack, FOAM_VERB_APPLY, -1, list, sizeof list[0], ROOM, &count, &error));
    CHECK(strcmp(list[1].name, "info") == 0);
    OK(&error, foam_stack_ports(&config, &stack, FOAM_VERB_APPLY, 1, list, sizeof list[0], ROOM, &count, &error));
    CHECK(strcmp(list[1].name, "params") == 0);
    config.weight_decay = 0.1;
    FAILS(&error, FOAM_INVALID_ARGUMENT, "with_params = 0|weight_decay",
          foam_stack_ports(&config, &stack, FOAM_VERB_APPLY, 0, list, sizeof list[0], ROOM, &count, &error));
    FAILS(&error, FOAM_INVALID_ARGUMENT, "verb = 3",
          foam_stack_ports(&config, &stack, 3, 0, list, sizeof list[0], ROOM, &count, &error));
    FAILS(&error, FOAM_INVALID_ARGUMENT, "with_params = 2",
          foam_stack_ports(&config, &stack, FOAM_VERB_APPLY, 2, list, sizeof list[0], ROOM, &count, &error));
}

static void record(void) {
    foam_error error = FOAM_ERROR_INIT;
    foam_record_field fields[ROOM];
    size_t count = 0;
    OK(&error, foam_record_fields(fields, sizeof fields[0], ROOM, &count, &error));
    REQUIRE(count == 38);
    int32_t word = 0;
    for (size_t at = 0; at < count; at++) {
        CHECK(fields[at].word == word && fields[at].words == 2);
        CHECK(fields[at].kind == (at < 12 ? FOAM_RECORD_REAL : FOAM_RECORD_WHOLE));
        word += fields[at].words;
    }
    CHECK(word == 76 && strcmp(fields[0].name, "epsilon") == 0 && strcmp(fields[9].name, "eigenvalue_max") == 0);
    CHECK(strcmp(fields[10].name, "kappa") == 0 && strcmp(fields[11].name, "orthogonality") == 0);
    CHECK(strcmp(fields[12].name, "last_branch") == 0 && strcmp(fields[13].name, "has_basis") == 0);
    CHECK(strcmp(fields[26].name, "fallback_stale") == 0 && strcmp(fields[33].name, "qr_fallbacks") == 0);
    CHECK(strcmp(fields[34].name, "qr_tracked") == 0 && strcmp(fields[35].name, "recent_refreshes") == 0);
    CHECK(strcmp(fields[36].name, "pending_since") == 0 && strcmp(fields[37].name, "delayed_checks") == 0);
    FAILS(&error, FOAM_INVALID_ARGUMENT, "count is NULL",
          foam_record_fields(fields, sizeof fields[0], ROOM, NULL, &error));
    FAILS(&error, FOAM_INVALID_ARGUMENT, "items has room for 33",
          foam_record_fields(fields, sizeof fields[0], 33, &count, &error));
}

int main(void) {
    blocks();
    ports();
    record();
    return check_result("lists");
}
