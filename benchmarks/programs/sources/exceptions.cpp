// Recursive descent over generated expressions; one in eight is wrong and is thrown out from deep.
//
// usage: PROGRAM ROUNDS    prints a checksum; 0 rounds: without end
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Node {
    virtual ~Node() = default;
    virtual long value() const = 0;
};
struct Number : Node {
    explicit Number(long number) : number_(number) {}
    long value() const override { return number_; }
    long number_;
};
struct Operation : Node {
    Operation(char sign, std::unique_ptr<Node> left, std::unique_ptr<Node> right)
        : sign_(sign), left_(std::move(left)), right_(std::move(right)) {}
    long value() const override
    {
        long a = left_->value(), b = right_->value();
        switch (sign_) {
        case '+': return a + b;
        case '-': return a - b;
        case '*': return (a * b) % 1000003;
        }
        if (b == 0)
            throw std::domain_error("division by zero");
        return a / b;
    }
    char sign_;
    std::unique_ptr<Node> left_, right_;
};

class Parser {
public:
    explicit Parser(std::string text) : text_(std::move(text)) {}
    std::unique_ptr<Node> expression()
    {
        if (at_ >= text_.size())
            throw std::out_of_range("end of text at " + std::to_string(at_));
        if (std::isdigit(static_cast<unsigned char>(text_[at_])))
            return std::make_unique<Number>(text_[at_++] - '0');
        if (text_[at_++] != '(')
            throw std::invalid_argument("'(' missing at " + std::to_string(at_));
        auto left = expression();
        char sign = text_[at_++];
        auto right = expression();
        if (text_[at_++] != ')')
            throw std::invalid_argument("')' missing at " + std::to_string(at_));
        return std::make_unique<Operation>(sign, std::move(left), std::move(right));
    }

private:
    std::string text_;
    std::size_t at_ = 0;
};

std::uint32_t state = 1;
unsigned draw(unsigned below)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 16) % below;
}

std::string generate(int depth)
{
    if (depth == 0)
        return std::string(1, static_cast<char>('0' + draw(10)));
    auto left = generate(depth - 1);
    return "(" + left + "+-*/"[draw(4)] + generate(depth - 1) + ")";
}

} // namespace

int main(int argc, char **argv)
{
    long rounds = argc > 1 ? std::atol(argv[1]) : 0;
    std::uint64_t sum = 0;
    std::map<std::string, long> errors;
    for (long i = 0; rounds == 0 || i < rounds; i++) {
        auto text = generate(static_cast<int>(2 + draw(6)));
        if (draw(8) == 0)
            text[draw(static_cast<unsigned>(text.size()))] = '?';
        try {
            sum = sum * 31 + static_cast<std::uint64_t>(Parser(text).expression()->value());
        } catch (std::invalid_argument const &error) {
            errors[error.what()]++;
        } catch (std::exception const &error) {
            errors[error.what()] += 2;
        }
    }
    for (auto const &[what, count] : errors)
        sum = sum * 31 + what.size() + static_cast<std::uint64_t>(count);
    std::printf("%016llx\n", static_cast<unsigned long long>(sum));
}
