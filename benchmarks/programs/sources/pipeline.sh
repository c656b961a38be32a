# Shell arithmetic between short pipelines of other programs: forks all the time.
# usage: pipeline.sh ROUNDS    prints a checksum; 0 rounds: without end
rounds=$1 i=0 sum=0
while [ "$rounds" = 0 ] || [ $i -lt "$rounds" ]; do
    n=0
    while [ $n -lt 2000 ]; do
        sum=$(((sum * 31 + n * i) % 1000003))
        n=$((n + 1))
    done
    part=$(seq $i $((i + 40)) | sort -rn | head -n 7 | cksum | cut -d' ' -f1)
    sum=$(((sum + part) % 1000003))
    i=$((i + 1))
done
echo $sum
