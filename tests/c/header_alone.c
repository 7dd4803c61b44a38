/* The header needs nothing in front of it, and may be included twice. */
#include <foam.h>
#include <foam.h>

int main(void) {
    foam_error error = FOAM_ERROR_INIT;
    const foam_error *record = &error;
    if (record->struct_size != sizeof(foam_error) || record->param_index != -1 || record->axis != -1)
        return 1;
    if (record->code != FOAM_OK || record->native_code != 0 || record->message[0] != 0) return 1;
    if (foam_abi_version() != ((FOAM_ABI_MAJOR << 16) | FOAM_ABI_MINOR)) return 1;
    return foam_status_name(FOAM_OK)[0] == 'F' && foam_build_info()[0] != 0 ? 0 : 1;
}
