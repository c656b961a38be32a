# words.awk TEXT: counts words and pairs of words that follow each other, then sorts lengths of
# lines. Deterministic: sums do not depend on the order in which an array is gone through.
{
    lines++
    length_of[lines] = length($0)
    for (i = 1; i <= NF; i++) {
        words++
        count[$i]++
        if (i > 1)
            pair[$(i - 1) SUBSEP $i]++
    }
}
function shell(n,    gap, i, j, kept) {
    for (gap = int(n / 2); gap > 0; gap = int(gap / 2))
        for (i = gap + 1; i <= n; i++) {
            kept = length_of[i]
            for (j = i - gap; j > 0 && length_of[j] > kept; j -= gap)
                length_of[j + gap] = length_of[j]
            length_of[j + gap] = kept
        }
}
END {
    for (word in count)
        often += count[word] * count[word]
    for (two in pair)
        twice += pair[two] > 1
    shell(lines)
    printf "%d %d %d %.0f %d %d\n", lines, words, length(count), often, twice, length_of[int(lines / 2)]
}
