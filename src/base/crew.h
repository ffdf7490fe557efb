/* A crew: threads that share a piece of work, together with whoever has it. They stay, and watch for more work for a
 * moment before they sleep, since pieces of a tensor follow each other closely. */
#ifndef PITH_BASE_CREW_H
#define PITH_BASE_CREW_H

#include <pith/pith.h>

typedef struct pith_crew pith_crew;

#define PITH_CREW_MOST 64 /* threads, the caller included */

/* `threads` with the caller: 1 needs no crew. */
pith_status pith__crew_create(unsigned threads, pith_crew **crew);
void pith__crew_destroy(pith_crew *crew);

/* 1 for NULL. */
unsigned pith__crew_size(const pith_crew *crew);

/* Calls run(argument, 0), run(argument, 1), … for each of `parts`, at most the crew's size, on threads of their own;
 * the caller takes part 0. Returns when all are done. One caller at a time. */
void pith__crew_run(pith_crew *crew, unsigned parts, void (*run)(void *argument, unsigned part), void *argument);

#endif
