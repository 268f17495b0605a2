/* Gives back many blocks in one call: what BlockPool._give_one does, one by one, in the same order.
 *
 * No Python objects and no locks: the caller owns the pool's arrays and is the only one who looks at
 * them. Every block's number is checked before it is used as an index.
 */
#include <stdint.h>

enum { NONE = -1 };

typedef struct {
    int32_t *references; /* of each block */
    uint8_t *hashed;     /* 1: its contents serve without a reference */
    int32_t *older;      /* cached blocks as a list: towards the one that is taken next */
    int32_t *newer;
    int32_t total;
    int32_t oldest;
    int32_t newest;
    int32_t cached;
} Lists;

static int is_held(const Lists *lists, int32_t block)
{
    return block >= 0 && block < lists->total && lists->references[block] > 0;
}

static void link_newest(Lists *lists, int32_t block)
{
    lists->older[block] = lists->newest;
    lists->newer[block] = NONE;
    if (lists->newest == NONE)
        lists->oldest = block;
    else
        lists->newer[lists->newest] = block;
    lists->newest = block;
    lists->cached++;
}

/* What a caller has to find before it trusts its own idea of `Lists`. */
__attribute__((visibility("default")))
int32_t sessiond_lists_bytes(void)
{
    return (int32_t)sizeof(Lists);
}

/* `blocks`: in the order of a page table; the last goes first. Those that are free now are written
 * to `freed`, which has room for `count`, in the order in which they were given back.
 *
 * Returns how many these are; -1 and nothing changed: a number is no block's, or nobody has a
 * reference to it. */
__attribute__((visibility("default")))
int32_t sessiond_free_blocks(Lists *lists, const int32_t *blocks, int32_t count, int32_t *freed)
{
    int32_t checked = 0; /* a block may be there twice: then it needs two references */
    while (checked < count && is_held(lists, blocks[checked]))
        lists->references[blocks[checked++]]--;
    for (int32_t i = 0; i < checked; i++)
        lists->references[blocks[i]]++;
    if (checked < count)
        return -1;
    int32_t free_count = 0;
    for (int32_t i = count; i-- > 0;) {
        int32_t block = blocks[i];
        if (--lists->references[block])
            continue;
        if (lists->hashed[block])
            link_newest(lists, block);
        else
            freed[free_count++] = block;
    }
    return free_count;
}
