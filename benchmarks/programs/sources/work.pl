# Counts words, matches patterns, sorts records. usage: work.pl ROUNDS (0: without end)
use strict;
use warnings;
use integer;

sub once {
    my ($state) = @_;
    my (%counts, @records);
    my $text = '';
    for my $i (1 .. 3000) {
        $state = ($state * 1103515245 + 12345) & 0x7fffffff;
        my $word = sprintf('w%x', ($state >> 8) % 900);
        $counts{$word}++;
        push @records, [$word, $state % 1000];
        $text .= "$word=$state ";
    }
    my $sum = 0;
    $sum += length($1) + $2 % 97 while $text =~ /w([a-f]\w*)=(\d+)/g;
    (my $other = $text) =~ s/(\d)(\d)/$2$1/g;
    $sum += ord(substr($other, $_ * 17, 1)) for 0 .. 500;
    my @sorted = sort { $a->[1] <=> $b->[1] || $a->[0] cmp $b->[0] } @records;
    $sum += $_ * length($sorted[$_][0]) for 0 .. $#sorted;
    $sum += $counts{$_} * ord(substr($_, 1)) for sort keys %counts;
    return $sum;
}

my ($rounds, $sum) = ($ARGV[0] // 0, 0);
for (my $i = 0; $rounds == 0 || $i < $rounds; $i++) {
    $sum = ($sum * 31 + once($i % 1000 + 1)) % 1000000007;
}
print "$sum\n";
