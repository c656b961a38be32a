/* Computes for good. */
#include "watchful.h"

int main(void)
{
    ready();
    while (!told()) compute(0.01);
    puts("right");
    return 0;
}
